"""Checks that apply to the report of every run of every capability."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from airflow_merge_provider.core.capabilities import list_counts
from airflow_merge_provider.core.report import (
    REPORT_MAX_BYTES,
    Report,
    build_report_schema,
    truncate_report,
)

_VALIDATOR = jsonschema.Draft202012Validator(build_report_schema(list_counts()))


def check_report(report: Report) -> dict[str, Any]:
    """Return a report as JSON, after checking it against its schema and the rules between its values."""
    json_report = report.as_json()
    _VALIDATOR.validate(json_report)
    short = truncate_report(report).as_json()
    _VALIDATOR.validate(short)
    assert len(json.dumps(short).encode()) <= REPORT_MAX_BYTES
    written = [json_report["rows"][kind] for kind in ("inserted", "updated", "deleted")]
    if json_report["run_mode"] == "noop":
        assert (json_report["changed"], written) == (False, [0, 0, 0])
    if any(written) and not json_report["dry_run"]:
        assert json_report["changed"]
    assert json_report["run_mode_reason"]
    return json_report
