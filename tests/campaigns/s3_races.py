"""Let two Spark processes load into one table on S3 at once, and check that no acknowledged load is lost.

``python -m tests.campaigns.s3_races [--races 100] [--seed 1] [--store provider|delta] [--delay 0.4]``. The S3
server is on this machine, behind a proxy that delays each write of a log entry by up to ``--delay`` seconds.
With ``delta``, the log store is that of Delta, to show what it loses. The exit code is 1 if a load was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_merge_provider.connect_server import find_free_port
from airflow_merge_provider.connect_token import add_token
from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.object_store.clients import add_spark_settings
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.progress import Progress
from airflow_merge_provider.jobs.spark.errors import convert_error
from tests.s3_server import S3Server, run_s3

_DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"
# A table is checked and replaced after this many races.
_RACES_PER_TABLE = 20
_PATIENCE = 300.0


@dataclass
class Tally:
    """What the loads of all races ended with."""

    acknowledged: int = 0
    refused: int = 0
    both: int = 0
    lost: list[str] = field(default_factory=list)


class Loader:
    """A process with a Spark of its own that loads rows on request."""

    def __init__(self, name: str, server: S3Server, store: str | None) -> None:
        self.name = name
        self._pipe, other_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        arguments = (other_end, server, store, name)
        self._process = context.Process(target=_serve_loads, args=arguments, daemon=True)
        self._process.start()

    def start_load(self, warehouse: str, target: str, key: int) -> None:
        """Request the load of one row."""
        self._pipe.send((warehouse, target, key))

    def read_result(self) -> bool:
        """Return whether the load was acknowledged; False if another one was faster.

        :raises RuntimeError: if it failed for another reason.
        """
        if not self._pipe.poll(_PATIENCE):
            raise RuntimeError(f"loader {self.name} does not answer")
        answer = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"loader {self.name}: {answer}")  # noqa: TRY004 - an error of the other process
        return bool(answer)

    def stop(self) -> None:
        """End the process and its Spark."""
        self._pipe.send(None)
        self._process.join(_PATIENCE)


def _serve_loads(pipe: Connection, server: S3Server, store: str | None, name: str) -> None:
    """Load rows until the request is None; the answer is whether the load committed, or an error."""
    settings = add_spark_settings({}, "s3://", server.settings)
    if store is not None:
        settings |= {setting: store for setting in settings if setting.startswith("spark.delta.logStore")}
    with _run_spark(settings) as spark:
        while (load := pipe.recv()) is not None:
            try:
                pipe.send(_load_row(spark, *load, name=name, is_safe=store is None))
            except Exception as error:  # noqa: BLE001 - the campaign reports it
                pipe.send(f"{type(error).__name__}: {error}"[:2000])


@contextlib.contextmanager
def _run_spark(settings: dict[str, str]) -> Iterator[Any]:
    from airflow_merge_provider.jobs.spark.session import get_session

    port = str(find_free_port("127.0.0.1"))
    command = [sys.executable, "-m", "airflow_merge_provider", "connect-server", "--port", port]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        match = re.search(r"sc://\S+", server.stdout.readline() if server.stdout else "")
        if match is None:
            raise RuntimeError("the Spark server has not started")
        url, token = add_token(match[0])
        os.environ.update(token, SPARK_REMOTE=url)
        yield get_session()
    finally:
        server.terminate()
        server.wait()


def _load_row(spark: Any, warehouse: str, target: str, key: int, *, name: str, is_safe: bool) -> bool:
    from airflow_merge_provider.jobs.merge_load.job import run

    request = JobRequest(
        job="merge_load",
        config={"strategy": "upsert", "source": f"from_{name}_{key}", "target": target, "primary_key": "id"},
        run=RunToken(dag_id="races", run_id=f"{target} {key}", task_id=name),
        warehouse=warehouse,
        started_at=key,
        allow_single_writer=not is_safe,
    )
    try:
        run(spark, request, Progress(out=str))
    except Exception as error:
        if isinstance(convert_error(error), ConflictError):
            return False
        raise
    return True


def race(
    server: S3Server, loaders: tuple[Loader, Loader], races: int, seed: int, minutes: float = math.inf
) -> Tally:
    """Run the races, or as many as the minutes suffice for, and return what became of the loads."""
    end = time.monotonic() + 60 * minutes
    tally, generator = Tally(), random.Random(seed)  # noqa: S311 - the order of loaders
    options = server.settings.as_delta_rs()
    for first in range(0, races, _RACES_PER_TABLE):
        if time.monotonic() > end:
            break
        warehouse, target = f"{server.make_bucket()}/wh", f"t{first}"
        acknowledged: set[int] = set()
        refused: set[int] = set()
        write_deltalake(f"{warehouse}/from_a_0", pa.table({"id": [0]}), storage_options=options)
        loaders[0].start_load(warehouse, target, 0)
        loaders[0].read_result()
        for number in range(first, min(first + _RACES_PER_TABLE, races)):
            keys = (2 * number + 1, 2 * number + 2)
            for loader, key in zip(loaders, keys, strict=True):
                rows = pa.table({"id": [key]})
                write_deltalake(f"{warehouse}/from_{loader.name}_{key}", rows, storage_options=options)
            pairs = list(zip(loaders, keys, strict=True))
            generator.shuffle(pairs)
            for loader, key in pairs:
                loader.start_load(warehouse, target, key)
            results = [loader.read_result() for loader, _ in pairs]
            for (_, key), result in zip(pairs, results, strict=True):
                (acknowledged if result else refused).add(key)
            tally.both += all(results)
        stored = _read_keys(f"{warehouse}/{target}", options)
        tally.acknowledged += len(acknowledged)
        tally.refused += len(refused)
        tally.lost += [f"{target}: {key} was acknowledged and is missing" for key in acknowledged - stored]
        tally.lost += [f"{target}: {key} was refused and is stored" for key in refused & stored]
        print(f"  {number + 1} races: {_describe(tally)}", flush=True)
    return tally


def _read_keys(location: str, options: dict[str, str]) -> set[int]:
    table = DeltaTable(location, storage_options=options)
    result = QueryBuilder().register("t", table).execute("SELECT id FROM t")
    return {row["id"] for row in pa.RecordBatchReader.from_stream(result).read_all().to_pylist()}


def _describe(tally: Tally) -> str:
    return (
        f"{tally.acknowledged} loads acknowledged ({tally.both} races in which both were), "
        f"{tally.refused} refused, {len(tally.lost)} lost"
    )


def main() -> int:
    """Run the campaign, and print lost loads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--races", type=int, default=100, help="the number of races (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further table after these")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the loaders (%(default)s)")
    parser.add_argument("--store", choices=("provider", "delta"), default="provider", help="(%(default)s)")
    parser.add_argument("--delay", type=float, default=0.4, help="at most, in seconds (%(default)s)")
    options = parser.parse_args()
    store = None if options.store == "provider" else _DELTAS_OWN
    with run_s3() as server:
        server.change_behaviour(delay_max=options.delay)
        loaders = (Loader("a", server, store), Loader("b", server, store))
        try:
            tally = race(server, loaders, options.races, options.seed, options.minutes)
        finally:
            for loader in loaders:
                loader.stop()
    print(f"races on S3 with {options.store} log store: {_describe(tally)}")
    for line in tally.lost[:20]:
        print(f"    {line}")
    return 1 if tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
