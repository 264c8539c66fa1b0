"""Ways to load tables: the history of airports, the flights of a day, changes of planes, events by type."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.delete_insert import DeleteInsertOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator, Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator

with DAG(
    "example_merge_load",
    schedule=None,
    catchup=False,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    # Each snapshot of all airports may come late or twice: the history is that of the ordered run.
    history = Scd2Operator(
        task_id="airport_history",
        source="airports_snapshot",
        target="airports_history",
        natural_key="icao",
        on_late="repair",
        current_column="is_current",
        max_close_ratio=0.1,
    )
    history >> Scd2CheckOperator(task_id="is_a_history", target="airports_history")

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

    # Each type of event has a table of its own, events/departed and so on, its list of notes one beside it.
    UpsertOperator(
        task_id="events_by_type",
        source="flight_events",
        target="events",
        primary_key="event_id",
        dispatch_by="type",
        nested="tables",
    )

if __name__ == "__main__":
    dag.test()
