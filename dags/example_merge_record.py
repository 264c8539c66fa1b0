"""Merge readings: the small files that stations write become one file per station."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.merge_record import MergeRecordOperator

with DAG(
    "example_merge_record",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    # Stations write station=<name>/<time>.json. A merged file has 500 to 5000 readings of one station;
    # smaller groups are merged after an hour. Schedule the DAG at least twice as often as that.
    MergeRecordOperator(
        task_id="merge",
        source="readings_landing",
        merged="readings_merged",
        failure="readings_failure",
        original="readings_original",
        state_path="readings_state",
        reader={"format": "json", "schema": "station STRING, at TIMESTAMP, temp DOUBLE, wind DOUBLE"},
        correlation_attribute_name="station",
        min_records=500,
        max_records=5000,
        max_bin_age="1 hour",
        max_bins=100,
    )

if __name__ == "__main__":
    dag.test()
