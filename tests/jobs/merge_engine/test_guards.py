"""Test the change limit, which stops a run before it writes."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.risk import RiskError
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.test_runs import KINDS, SUM


@pytest.mark.long
def test_a_run_that_changes_too_much_writes_nothing(make_stream: MakeStream) -> None:
    """With one changed, one new and one removed key of two, a dry run warns and a run fails.

    It fails before its change log has a row.
    """
    stream = make_stream(**{**SUM, **KINDS, "changelog": "log"})
    stream.write_batch({"k": [1, 2], "op": ["+I", "+I"], "v": [10, 1]})
    stream.run_job(max_change_ratio=0.0)
    stream.write_batch({"k": [1, 3], "op": ["-D", "+I"], "v": [4, 7]})
    lines = len(stream.read_rows("log"))

    dry = stream.run_job(until="transform", max_change_ratio=0.5)
    with pytest.raises(
        RiskError, match=r"2 rows to a target of 2 rows, a change ratio of 1; the limit is 0.5"
    ) as refused:
        stream.run_job("late", max_change_ratio=0.5)

    assert dry["warnings"] == [
        (
            "max_change_ratio: the run would write 2 rows to a target of 2 rows, "
            "a change ratio of 1; the limit is 0.5"
        )
    ]
    assert refused.value.report.counts == dry["counts"]
    assert (stream.read_version(), len(stream.read_rows("log"))) == (0, lines)
    assert stream.run_job("late", max_change_ratio=1.0)["target"]["version"] == 1
    full = stream.run_job(full_refresh=True, max_change_ratio=0.0)
    assert (full["changed"], stream.read_rows()) == (True, [(1, 6), (2, 1), (3, 7)])
