"""Load tables: the history of airports, the flights of a day, plane changes, events by type."""

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
    # Snapshots of all airports may arrive late or twice: the history is the same as from loads in order.
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

    # Loading a day again replaces its flights.
    DeleteInsertOperator(
        task_id="flights_of_the_day",
        source="flights_extract",
        target="flights",
        merge_key=["year", "month", "day"],
    )

    # Of several changes of one plane the last one is used; a flagged change deletes the plane.
    UpsertOperator(
        task_id="changed_planes",
        source="planes_changes",
        target="planes",
        primary_key="tailnum",
        dedup_sort={"changed_at": "desc"},
        hard_delete="is_deleted",
    )

    # Each event type is written to its own table, events/departed and so on, its list of notes to another.
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
