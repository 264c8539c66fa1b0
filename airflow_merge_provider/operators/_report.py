"""Define the XCom key of a run's report and the payload of the asset event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REPORT_KEY = "merge_report"


def event_extra(report: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Return the extra of the asset event: the run, the table version and the counts."""
    details = report.get("details") or {}
    return {
        "job": report["job"],
        "run": run_id,
        "run_mode": report["run_mode"],
        "version": report["target"]["version"],
        "uri": report["target"]["uri"],
        "rows": report["rows"],
        "counts": report["counts"],
        **({} if report.get("populated") is None else {"populated": report["populated"]}),
        **({"reasons": details["reasons"]} if details.get("reasons") else {}),
    }
