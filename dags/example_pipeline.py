"""A pipeline of six DAGs: a DAG that writes a dataset starts the DAGs that read it.

Three lists of airports become golden airports. Changes of flights become flights. Files of weather readings
become one file per station, and these become a table. Flights are joined with their weather and their
destination airport. The result is stored with its history.

Start only the first DAG manually. Start it again with another name for an airport,
``{"rename": {"BOS": "Boston Logan"}}``: the golden airport changes, then its flights, then their history.

The tasks of the other DAGs need the Airflow pool ``merge_spark``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.joiner import JoinerOperator
from airflow_merge_provider.operators.merge_engine import MergeEngineOperator
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.merge_source import MergeSourceOperator
from airflow_merge_provider.operators.scd2 import Scd2CheckOperator, Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor

WORLD, NYC, US = (dataset_asset(name) for name in ("airports_world", "airports_nyc", "airports_us"))
CHANGES, LANDING = dataset_asset("flight_changes"), dataset_asset("weather_landing")
AIRPORTS, FLIGHTS, WEATHER = (
    dataset_asset(name) for name in ("pipeline_airports", "pipeline_flights", "pipeline_weather")
)
DEPARTURES = dataset_asset("pipeline_departures")
# One run at a time: events during a run start one more run, and each run reads all new data.
COMMON: dict[str, Any] = {"catchup": False, "max_active_runs": 1, "tags": ["example", "pipeline"]}
# DAGs that start together wait for a slot in the scheduler, not in a worker. Create the pool once:
# airflow pools set merge_spark 4 "merges at the same time"
IN_POOL: dict[str, Any] = {"default_args": {"pool": "merge_spark"}}

with DAG(
    "example_pipeline",
    schedule=None,
    params={"rename": Param({}, type="object", description="New names of airports, by FAA code")},
    doc_md=__doc__,
    **COMMON,
) as head:

    @task(outlets=[WORLD, NYC, US, CHANGES, LANDING])
    def publish(params: dict[str, Any] | None = None) -> list[str]:
        """Write the inputs of the pipeline."""
        from demo.pipeline import publish_tables as write  # noqa: PLC0415 - import inside the task

        from airflow_merge_provider.hooks.warehouse import find_warehouse  # noqa: PLC0415

        return write(Path(find_warehouse() or "."), (params or {}).get("rename"))

    publish()

with DAG("example_pipeline_airports", schedule=(WORLD | NYC | US), **COMMON, **IN_POOL) as airports:
    # Airports are merged only if they have the same code in all lists, so that each row is one airport.
    MergeSourceOperator(
        task_id="merge",
        target=AIRPORTS,
        datasets=["airports_world w", "airports_nyc n", "airports_us u"],
        equality=[["eq", "w.iata", "n.faa"], ["eq", "w.iata", "u.iata"], ["eq", "n.faa", "u.iata"]],
        values="columns",
        survivorship={
            "faa": "first",
            "name": {"prefer": ["airports_nyc", "airports_world"]},
            "city": {"prefer": ["airports_us"]},
            "tz": "first",
        },
        version=2,
    )

with DAG("example_pipeline_flights", schedule=CHANGES, **COMMON, **IN_POOL) as flights:
    MergeEngineOperator(
        task_id="fold",
        source=CHANGES,
        target=FLIGHTS,
        primary_key=["flight_id"],
        merge_engine="partial-update",
        options={
            "fields.departed_at.sequence-group": "dep_time,dep_delay",
            "fields.arrived_at.sequence-group": "arr_time,arr_delay,air_time",
        },
    )

with DAG("example_pipeline_weather", schedule=LANDING, **COMMON, **IN_POOL) as weather:
    merged = MergeRecordOperator(
        task_id="merge_files",
        source=LANDING,
        merged="weather_merged",
        failure="weather_failure",
        original="weather_original",
        state_path="weather_state",
        reader={
            "format": "json",
            "schema": "origin STRING, time_hour STRING, temp DOUBLE, wind_speed DOUBLE, visib DOUBLE",
        },
        writer={"format": "parquet"},
        correlation_attribute_name="station",
        min_records=100,
        max_records=5000,
        flush=True,
    )
    merged >> UpsertOperator(
        task_id="load",
        # The folder also contains a file with the attributes of each merged file.
        source={"dataset": "weather_merged", "format": "parquet", "options": {"pathGlobFilter": "*.parquet"}},
        target=WEATHER,
        primary_key=["origin", "time_hour"],
    )

with DAG(
    "example_pipeline_departures", schedule=(AIRPORTS | FLIGHTS | WEATHER), **COMMON, **IN_POOL
) as departures:
    # The first event arrives before all tables exist: the run waits for them, without a worker.
    wait = DatasetPopulatedSensor(
        task_id="wait", datasets=[AIRPORTS, FLIGHTS, WEATHER], ignore_non_existent_datasets=False
    )
    at_origin = JoinerOperator(
        task_id="weather_at_origin",
        inputs={"f": FLIGHTS, "w": WEATHER},
        join_keys="f.origin = w.origin & f.time_hour = w.time_hour",
        required_inputs="f",
        fields_to_select="f.flight_id, f.time_hour, f.origin, f.dest, f.dep_delay, f.arr_delay,"
        " w.temp, w.wind_speed, w.visib",
        expect={"w": "many_to_one"},
        target="pipeline_weather_at_origin",
    )
    to_airport = JoinerOperator(
        task_id="airport_of_destination",
        inputs={"f": "pipeline_weather_at_origin", "a": AIRPORTS},
        join_keys="f.dest = a.faa",
        required_inputs="f",
        join_null_keys=False,
        selected_fields="f.flight_id, f.time_hour, f.origin, f.dest, f.dep_delay, f.arr_delay,"
        " f.temp, f.wind_speed, f.visib, a.name as dest_name, a.city as dest_city",
        target=DEPARTURES,
    )
    wait >> at_origin >> to_airport

with DAG("example_pipeline_history", schedule=DEPARTURES, **COMMON, **IN_POOL) as history:
    history_task = Scd2Operator(
        task_id="keep",
        source=DEPARTURES,
        target="pipeline_history",
        natural_key="flight_id",
        current_column="is_current",
        max_close_ratio=0.1,
    )
    history_task >> Scd2CheckOperator(task_id="is_a_history", target="pipeline_history", source=DEPARTURES)

if __name__ == "__main__":
    head.test()
