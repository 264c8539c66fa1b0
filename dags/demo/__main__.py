"""Run the example DAGs in a separate Airflow and print their results: ``python -m demo run | ui``."""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import DataError, JobError, MergeError, SetupError
from airflow_merge_provider.spark_process.jvm.jars import delta_jars, find_java
from demo import golden_airports, worked_example
from demo.inputs import prepare_tables
from demo.local_airflow import ALL, LocalAirflow, free_port
from demo.store import STORES, Warehouse, open_warehouse
from demo.tables import entity_lines, has_table, read_entities

Reports = dict[str, dict[str, Any]]

WORKED, GOLDEN = "example_merge_source", "example_golden_airports"
PIPELINE = "example_pipeline"
HOME = Path(__file__).resolve().parents[2] / ".demo"
_TASK = "merge"
_PORT = 8080
_STOPPED = 130
_began = time.monotonic()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; print an error on one line with how to fix it."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("what", choices=["run", "ui"])
    parser.add_argument(
        "--home",
        type=Path,
        default=HOME,
        help="the folder of the tables, and of the database and the logs of Airflow",
    )
    store_help = "where the tables are: in the folder, or on an S3 server that runs as long as the command"
    parser.add_argument("--store", choices=STORES, default=STORES[0], help=store_help)
    options = parser.parse_args(arguments)
    home = options.home.resolve() if options.store == STORES[0] else options.home.resolve() / options.store
    # Set the handlers explicitly: a background process may have been started with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_interrupt)
    try:
        find_java()
        delta_jars()
        with _lock_home(home), open_warehouse(options.store, home) as warehouse:
            if options.what == "run" or not _has_run(warehouse):
                _run_demo(home, warehouse)
            if options.what == "ui":
                _serve_ui(home, warehouse)
    except MergeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        print_timed("stopped")
        return 0 if options.what == "ui" else _STOPPED
    return 0


def print_timed(text: str) -> None:
    """Print a line with the seconds since the start."""
    print_line(f"[demo  +{time.monotonic() - _began:5.1f}s] {text}")


def print_line(text: str = "") -> None:
    """Print a line and flush it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _run_demo(home: Path, warehouse: Warehouse) -> None:
    counts = prepare_tables(warehouse)
    print_timed("tables: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    with _build_airflow(home, warehouse) as airflow:
        print_timed("Airflow starts: api-server, scheduler, dag-processor")
        airflow.wait_until_ready((WORKED, GOLDEN))
        reports = {dag_id: _merge_airports(airflow, dag_id) for dag_id in (WORKED, GOLDEN)}
    print_timed("Airflow has stopped")
    _tell_worked_example(warehouse, reports[WORKED])
    _tell_golden_airports(warehouse, reports[GOLDEN])
    _tell_seconds(reports)
    print_line()
    if not any(report["changed"] for report in reports.values()):
        print_line("Nothing has changed since the previous run: no table has a new version.")
    print_line("Next: make ui shows these runs, make test runs the tests.")


def _merge_airports(airflow: LocalAirflow, dag_id: str) -> dict[str, Any]:
    """Run a DAG and return the report of its merge.

    :raises JobError: when it fails.
    """
    run_id = airflow.trigger_run(dag_id)
    print_timed(f"{dag_id}: {airflow.url}/dags/{dag_id}/runs/{run_id}")
    if airflow.follow_run(dag_id, run_id, print_line) != "success":
        log = next(iter(airflow.log_files(dag_id, run_id)), airflow.home / "scheduler.log")
        reason = airflow.read_reason(dag_id, run_id)
        raise JobError(
            f"{dag_id} failed: {reason}\nIts log is {log}; make clean removes all data of the demo."
        )
    report: dict[str, Any] = airflow.read_xcom(dag_id, run_id, _TASK, "merge_report")
    target = report["target"]
    outcome = "wrote" if report["changed"] else "nothing has changed since"
    print_timed(f"{dag_id}: {outcome} {target['dataset']} version {target['version']}")
    return report


def _tell_worked_example(warehouse: Warehouse, report: Mapping[str, Any]) -> None:
    """Print the outputs of the worked example.

    :raises DataError: when they differ from the expected outputs.
    """
    version = report["target"]["version"]
    target = warehouse.locate_table(worked_example.TARGET)
    outputs = entity_lines(read_entities(target, version, warehouse.options))
    _print_title(f"A, B and C merged: {worked_example.TARGET}, version {version}")
    for line in outputs:
        print_line(line)
    if outputs != worked_example.EXPECTED:
        raise DataError("The output differs from the expected output:\n" + "\n".join(worked_example.EXPECTED))


def _tell_golden_airports(warehouse: Warehouse, report: Mapping[str, Any]) -> None:
    version = report["target"]["version"]
    airports = golden_airports.read_airports(warehouse)
    golden_list = golden_airports.list_golden(warehouse, airports, version)
    _print_title(f"Three lists of airports merged: {golden_airports.TARGET}, version {version}")
    for line in golden_airports.format_report(report, golden_list, airports):
        print_line(line)


def _tell_seconds(reports: Reports) -> None:
    _print_title("Seconds")
    for dag_id, report in reports.items():
        steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in report["seconds"].items())
        print_line(f"{dag_id:<24} {sum(report['seconds'].values()):5.1f}  ({steps})")


def _serve_ui(home: Path, warehouse: Warehouse) -> None:
    with _build_airflow(home, warehouse, parts=ALL, port=free_port(_PORT)) as airflow:
        print_timed("Airflow starts")
        airflow.wait_until_ready((WORKED, GOLDEN, PIPELINE))
        print_line()
        print_line(f"Airflow: {airflow.url} (no login, this machine only; Ctrl-C stops)")
        print_line(f"A merge report: {airflow.url}/dags/{GOLDEN}, then a run, its task, the tab Merge report")
        print_line(
            f"A pipeline to start: {airflow.url}/dags/{PIPELINE}, then Trigger; five more DAGs follow it"
        )
        airflow.watch_processes()


def _print_title(text: str) -> None:
    print_line()
    print_line(text)
    print_line("-" * len(text))


def _build_airflow(home: Path, warehouse: Warehouse, **options: Any) -> LocalAirflow:
    settings = warehouse.environment
    return LocalAirflow(home / "airflow", warehouse.location, settings=settings, **options)


def _has_run(warehouse: Warehouse) -> bool:
    targets = (worked_example.TARGET, golden_airports.TARGET)
    return all(has_table(warehouse.locate_table(target), warehouse.options) for target in targets)


@contextmanager
def _lock_home(home: Path) -> Iterator[None]:
    """Lock the home folder, so that a second demo cannot use the same database.

    :raises SetupError: when another demo is running.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"make demo or make ui already runs in {home}: stop it first") from None
        yield


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
