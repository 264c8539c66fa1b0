"""How much of a job's report goes to Airflow: the XCom, and the payload of the asset event."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

REPORT_KEY = "merge_report"
LIMIT = 4096
_KEPT = ("job", "changed", "dry_run", "target", "counts", "populated", "became_populated")


def fitting(report: Mapping[str, Any]) -> dict[str, Any]:
    """Give the report, without its largest parts when it is too long for Airflow's database.

    What is left out is named under ``left_out``.

    >>> fitting({"counts": {"outputs": 1}, "warnings": ["x" * 5000]})
    {'counts': {'outputs': 1}, 'left_out': ['warnings']}
    """
    fit = dict(report)
    sizes = {name: _size(value) for name, value in report.items() if name not in _KEPT}
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        if _size(fit) < LIMIT:
            break
        del fit[name]
        fit["left_out"] = sorted([*fit.get("left_out", []), name])
    return fit


def event_extra(report: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Give what consumers of the asset learn: which run, which version, how much."""
    target = report.get("target") or {}
    populated = {"populated": report["populated"]} if "populated" in report else {}
    return {
        "job": report.get("job"),
        "run": run_id,
        "version": target.get("version"),
        "uri": target.get("uri"),
        "counts": report.get("counts") or {},
        **populated,
        **({"reasons": report["reasons"]} if report.get("reasons") else {}),
    }


def _size(value: Any) -> int:
    return len(json.dumps(value, default=str).encode())
