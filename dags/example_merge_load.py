"""Three ways to load a table: the history of airports, the flights of a day, the changes of planes."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.scd2 import Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator

with DAG(
    "example_merge_load",
    schedule=None,
    catchup=False,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    # Each snapshot of all airports may come late or twice: the history is that of the ordered run.
    Scd2Operator(
        task_id="airport_history",
        source="airports_snapshot",
        target="airports_history",
        natural_key="icao",
        on_late="repair",
        current_column="is_current",
        max_close_ratio=0.1,
    )

    # A day that is loaded again leaves one copy of its flights.
    DeleteInsertOperator(
        task_id="flights_of_the_day",
        source="flights_extract",
        target="flights",
        merge_key=["year", "month", "day"],
    )

    # Of several changes of one plane the last one counts; a flagged one deletes it.
    UpsertOperator(
        task_id="changed_planes",
        source="planes_changes",
        target="planes",
        primary_key="tailnum",
        dedup_sort={"changed_at": "desc"},
        hard_delete="is_deleted",
    )

if __name__ == "__main__":
    dag.test()
