"""Random tables through every capability and back: ``python -m tests.campaigns.values --tables 100``.

Many tables go through each capability side by side, in one wide table: a first run, a run with changes, one
of equal rows, and an undo. After each, the rows that independent readers find equal those of an oracle. The
exit code is 1 if there is a difference; each has its seed, capability, table, column, type and both values.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import format_count
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.run.retry import run_attempt
from tests.campaigns.faults.processes import open_session
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.rounds import Rounds, add_seed, choose_seed
from tests.campaigns.values_files import FORMATS, try_format
from tests.campaigns.values_oracles import CASES, Case, build_case
from tests.reports import check_report
from tests.values.random_tables import RandomTables, Rows, find_differences
from tests.values.readers import READERS, read_table

# 2024-01-01, in microseconds, and a day.
_START, _DAY = 1_704_067_200_000_000, 86_400_000_000
_TARGET = "target"
# Tables side by side, and differences of one capability that are printed.
_BATCH, _SHOWN = 100, 10


@dataclass
class ValueTally:
    """Tables that came through, by capability, compared rows by reader, and all differences."""

    tables: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    failed: list[str] = field(default_factory=list)

    def describe(self, seeds: str) -> list[str]:
        """Return the lines of a summary: the seeds, and the tables and rows that were compared."""
        cases = ", ".join(f"{name} {count}" for name, count in sorted(self.tables.items()))
        readers = ", ".join(f"{name} {count}" for name, count in sorted(self.rows.items()))
        differences = format_count(len(self.failed), "difference")
        return [
            f"values, {seeds}: {self.tables.total():,} tables compared, {differences}",
            f"  tables: {cases}",
            f"  rows by reader: {readers}",
            f"  seconds: {', '.join(f'{name} {count:.0f}' for name, count in sorted(self.seconds.items()))}",
        ]


def try_tables(
    spark: SparkSession,
    tables: RandomTables,
    folder: Path,
    tally: ValueTally,
    names: Iterable[str] = (*CASES, *FORMATS),
) -> None:
    """Send tables through capabilities; a difference or an error is a finding of its capability."""
    for name in names:
        began, case_folder = time.monotonic(), folder / name
        try:
            if name in FORMATS:
                differences = list(try_format(spark, tables, name, case_folder, tally.rows))
            else:
                case = build_case(name, tables)
                differences = list(_Runs(spark, case.tables, case, case_folder, tally.rows).run_all())
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            differences = [f"{type(error).__name__}: {str(error)[:3000]}"]
        tally.failed += [f"seed {tables.seed}, {name}, {difference}" for difference in differences]
        tally.tables[name] += 0 if differences else len(tables.tables)
        tally.seconds[name] += time.monotonic() - began
        if not differences:
            shutil.rmtree(case_folder)


class _Runs:
    """The runs of a case, with its tables below a folder."""

    def __init__(
        self, spark: SparkSession, tables: RandomTables, case: Case, folder: Path, rows: Counter[str]
    ) -> None:
        self._spark, self._tables, self._case, self._folder, self._rows = spark, tables, case, folder, rows

    def run_all(self) -> Iterable[str]:
        """Return differences after first rows, changes, the same rows again, and an undo of the changes."""
        case = self._case
        turn = self._tables.seed + list(CASES).index(case.name)
        first, last = (READERS[1 + (turn + later) % (len(READERS) - 1)] for later in (0, 1))
        for step, reader in ((1, first), (2, "pyarrow"), (3, last)):
            for dataset, (rows, mode) in case.sources.get(step, {}).items():
                write_deltalake(str(self._folder / dataset), rows, mode=mode)
            report = self._run_job(case.job, {**case.config, "target": _TARGET}, step)
            if report["changed"] is not (step < 3):
                yield f"run {step}: changed is {report['changed']}: {report['rows']}"
            yield from self._compare(step, reader, case.expected[min(step, 2)])
        self._run_job("undo", {"target": _TARGET, "run": "run-2"}, 4)
        yield from self._compare(4, "pyarrow", case.expected[1])

    def _compare(self, step: int, reader: str, expected: Rows) -> Iterable[str]:
        rows = read_table(reader, self._folder / _TARGET)
        actual = [shown for row in rows if (shown := self._case.show(row)) is not None]
        self._rows[reader] += len(actual)
        for difference in find_differences(self._tables, self._case.names, expected, actual):
            yield f"run {step}, read by {reader}, {difference}"

    def _run_job(self, job: Any, config: dict[str, Any], step: int) -> dict[str, Any]:
        token = RunToken(dag_id="values", run_id=f"run-{step}", task_id=job)
        request = JobRequest(
            job=job, config=config, run=token, warehouse=str(self._folder), started_at=_START + step * _DAY
        )
        run = importlib.import_module(f"airflow_merge_provider.jobs.{job}.job").run
        return check_report(run_attempt(self._spark, request, Progress(out=str), run))


def main(arguments: Sequence[str] | None = None) -> int:
    """Send tables through capabilities until the time or the number is reached; stop after a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", type=int, help="how many, of each capability; fail if the time ends before"
    )
    parser.add_argument("--minutes", type=float, default=60, help="how long at most (%(default)s)")
    add_seed(parser)
    parser.add_argument("--batch", type=int, default=_BATCH, help="tables side by side (%(default)s)")
    names = (*CASES, *FORMATS)
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="capabilities and formats")
    options = parser.parse_args(arguments)
    tally, folder = ValueTally(), Path(mkdtemp(prefix="values-"))
    rounds = Rounds(options.only, choose_seed(options.seed), options.minutes, complete=options.complete)
    with ConnectServer() as server:
        spark = open_session(server.get_url())
        for tables, name in _list_cases(rounds, options.tables or math.inf, options.batch, tally):
            failures = len(tally.failed)
            try_tables(spark, tables, folder / str(tables.seed), tally, [name])
            gc.collect()  # sessions of Spark Connect collect nothing on their own
            count, seconds = len(tables.tables), tally.seconds[name]
            print(f"  --seed {tables.seed} --tables {count} --only {name}: {seconds:.0f} s", flush=True)
            for line in tally.failed[failures:][:_SHOWN]:
                print(f"    {line[:4000]}", flush=True)
        spark.stop()
    print(*tally.describe(rounds.describe_seeds()), sep="\n")
    if not tally.failed:
        shutil.rmtree(folder)
    missing = [name for name in options.only if tally.tables[name] < (options.tables or 0)]
    if missing and not tally.failed:
        print(f"  the time did not suffice for all tables of {', '.join(missing)} (use more --minutes)")
    return rounds.get_exit_code(len(tally.failed) + len(missing))


def _list_cases(
    rounds: Rounds, count: float, batch: int, tally: ValueTally
) -> Iterator[tuple[RandomTables, str]]:
    """Yield tables with each capability, until there are enough, or a seed has differences."""
    tables: RandomTables | None = None
    for seed, name in rounds:
        if tables is None or tables.seed != seed:
            if tally.failed or count <= 0:
                return
            tables = RandomTables(seed, int(min(batch, count)))
            count -= batch
        yield tables, name


if __name__ == "__main__":
    sys.exit(main())
