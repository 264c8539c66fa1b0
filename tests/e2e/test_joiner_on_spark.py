"""Test the example of two consecutive joins in a DAG run with real Spark and real tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder

pytestmark = [pytest.mark.airflow, pytest.mark.spark]

# The last table of the source's second use case; its last row is printed with customer 3, who bought nothing.
EXPECTED = [
    (23, 1, "Alex", "Canada", "Walmart", "2015-01-23", 20),
    (24, 2, "Bob", "California", "Dstore", "2015-01-12", 400),
    (25, 2, "Bob", "California", "Walmart", "2014-03-28", 600),
]


# More than 20 seconds: each of four tasks starts Spark.
def test_the_example_gives_the_table_that_its_source_prints(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both joins commit once, with the table of the example; a second run has nothing to do."""
    monkeypatch.setenv("AIRFLOW__MERGE__WAREHOUSE", str(tmp_path))
    import example_joiner

    runs = [run_dag(example_joiner.dag), run_dag(example_joiner.dag)]

    last = str(tmp_path / "customers_purchases_transactions")
    rows = QueryBuilder().register("joined", DeltaTable(last)).execute("SELECT * FROM joined").read_all()
    import pyarrow as pa

    assert sorted(tuple(row.values()) for row in pa.table(rows).to_pylist()) == EXPECTED
    assert DeltaTable(last).version() == 0
    for run, changed in zip(runs, (True, False), strict=True):
        assert {str(task_instance.state) for task_instance in run.get_task_instances()} == {"success"}
        for join in ("customers_purchases", "customers_purchases_transactions"):
            report = run.get_task_instance(join).xcom_pull(task_ids=join, key="merge_report")
            assert report["changed"] is changed
            assert report["counts"] == {"records_in": 6 if changed else 0, "outputs": 3, "unmatched": 0}
            assert sum(source["rows"] for source in report["sources"].values()) == 6
