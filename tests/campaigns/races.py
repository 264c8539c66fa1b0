"""Let two Spark processes write to one table at once, and check that no acknowledged write is lost.

``python -m tests.campaigns.races [--place s3|local] [--races 100] [--writer load|append]
[--store provider|delta]``. The S3 server is on this machine, behind a proxy that delays each write of a log
entry by up to ``--delay`` seconds; on the local disk, strace delays what gives a log entry its name by as
much. Meanwhile other tables are raced for: ``--tables`` at once.

A load of this package is refused if another one was faster; an append of Spark is repeated until it commits.
With ``delta``, the log store is that of Delta, to show what it loses. The exit code is 1 if a load was lost.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from airflow_merge_provider.core.errors import ConflictError
from airflow_merge_provider.core.object_store.clients import add_spark_settings
from airflow_merge_provider.core.object_store.s3_settings import S3Settings
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.spark.errors import convert_error
from tests.campaigns.faults.processes import open_session
from tests.campaigns.faults.server import ConnectServer
from tests.campaigns.rounds import add_seed, choose_seed
from tests.s3_server import S3Server, run_s3

# Delta's own log stores.
_DELTAS_OWN = {"s3": "io.delta.storage.S3SingleDriverLogStore", "local": "io.delta.storage.HDFSLogStore"}
_LOCAL_LOG_STORE = "spark.delta.logStore.file.impl"
_SYSTEM_CALLS = "rename,link,linkat"
# A table is checked and replaced after this many races.
_RACES_PER_TABLE = 20
_PATIENCE = 300.0


@dataclass
class Tally:
    """What the loads of all races ended with."""

    races: int = 0
    acknowledged: int = 0
    refused: int = 0
    both: int = 0
    lost: list[str] = field(default_factory=list)

    def add_tally(self, other: Tally) -> None:
        """Add the numbers of other races."""
        self.races += other.races
        self.acknowledged += other.acknowledged
        self.refused += other.refused
        self.both += other.both
        self.lost += other.lost


class Loader:
    """A client of one of the two Spark processes, which loads rows on request."""

    def __init__(self, name: str, remote: str, writer: str, *, is_safe: bool) -> None:
        self.name = name
        self._pipe, other_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        arguments = (other_end, remote, name, writer, is_safe)
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
        """End the process."""
        self._pipe.send(None)
        self._process.join(_PATIENCE)


def _serve_loads(pipe: Connection, remote: str, name: str, writer: str, is_safe: bool) -> None:
    """Load rows until the request is None; the answer is whether the load committed, or an error."""
    spark = open_session(remote)
    while (load := pipe.recv()) is not None:
        try:
            if writer == "append":
                pipe.send(_append_row(spark, *load))
            else:
                pipe.send(_load_row(spark, *load, name=name, is_safe=is_safe))
        except Exception as error:  # noqa: BLE001 - the campaign reports it
            pipe.send(f"{type(error).__name__}: {error}"[:2000])


def _append_row(spark: Any, warehouse: str, target: str, key: int) -> bool:
    row = spark.createDataFrame([(key,)], "id long")
    row.write.format("delta").mode("append").save(f"{warehouse}/{target}".replace("s3://", "s3a://"))
    return True


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


class LocalDisk:
    """Temporary folders on this machine, in place of an S3 server."""

    settings = S3Settings()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_bucket(self) -> str:
        """Return a new folder."""
        return tempfile.mkdtemp(dir=self._folder)


@contextmanager
def delay_commits(servers: Iterable[ConnectServer], seconds: float) -> Iterator[None]:
    """Delay the system calls that give a local log entry its name, in the Java processes of servers."""
    delay = f"inject={_SYSTEM_CALLS}:delay_enter={round(seconds * 1e6)}"
    options = ["-f", "-q", "-o", os.devnull, "-e", f"trace={_SYSTEM_CALLS}", "-e", delay]
    tracers = [
        subprocess.Popen(["strace", *options, "-p", str(server.find_java())]) for server in servers if seconds
    ]
    try:
        yield
    finally:
        for tracer in tracers:
            tracer.terminate()
            tracer.wait()


def race(
    server: S3Server | LocalDisk,
    loaders: tuple[Loader, Loader],
    first: int,
    generator: random.Random,
    *,
    has_sources: bool,
) -> Tally:
    """Run the races of one table, and return what became of the loads."""
    tally, options = Tally(), server.settings.as_delta_rs()
    warehouse, target = f"{server.make_bucket()}/wh", f"t{first}"
    acknowledged: set[int] = set()
    refused: set[int] = set()
    write_deltalake(f"{warehouse}/from_a_0", pa.table({"id": [0]}), storage_options=options)
    loaders[0].start_load(warehouse, target, 0)
    loaders[0].read_result()
    for number in range(first, first + _RACES_PER_TABLE):
        keys = (2 * number + 1, 2 * number + 2)
        for loader, key in zip(loaders, keys, strict=True) if has_sources else ():
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
    tally.races, tally.acknowledged, tally.refused = _RACES_PER_TABLE, len(acknowledged), len(refused)
    tally.lost += [f"{target}: {key} was acknowledged and is missing" for key in acknowledged - stored]
    tally.lost += [f"{target}: {key} was refused and is stored" for key in refused & stored]
    return tally


def race_for_tables(
    server: S3Server | LocalDisk, remotes: tuple[str, str], options: argparse.Namespace
) -> Tally:
    """Race for table after table until there are enough races, or no time for more of them."""
    total, lock = Tally(), threading.Lock()
    end = time.monotonic() + 60 * options.minutes
    firsts = iter(range(0, options.races, _RACES_PER_TABLE))

    def race_in_lane(lane: int) -> None:
        is_safe = options.store == "provider"
        loaders = (
            Loader("a", remotes[0], options.writer, is_safe=is_safe),
            Loader("b", remotes[1], options.writer, is_safe=is_safe),
        )
        generator = random.Random(f"{options.seed}/{lane}")  # noqa: S311 - the order of loaders
        try:
            while time.monotonic() < end:
                with lock:
                    first = next(firsts, None)
                if first is None:
                    return
                tally = race(server, loaders, first, generator, has_sources=options.writer == "load")
                with lock:
                    total.add_tally(tally)
                    print(f"  {_describe(total)}", flush=True)
        finally:
            for loader in loaders:
                loader.stop()

    with ThreadPoolExecutor(options.tables) as executor:
        list(executor.map(race_in_lane, range(options.tables)))
    return total


def race_on_s3(options: argparse.Namespace) -> Tally:
    """Race for tables on an S3 server of this machine."""
    with run_s3() as server:
        server.change_behaviour(delay_max=options.delay)
        conf = add_spark_settings({}, "s3://", server.settings)
        if options.store == "delta":
            conf |= {name: _DELTAS_OWN["s3"] for name in conf if name.startswith("spark.delta.logStore")}
        os.environ.update(server.settings.as_delta_rs())
        with ConnectServer(conf=conf) as one, ConnectServer(conf=conf) as other:
            return race_for_tables(server, (one.get_url(), other.get_url()), options)


def race_on_disk(options: argparse.Namespace) -> Tally:
    """Race for tables on the local disk."""
    conf = {_LOCAL_LOG_STORE: _DELTAS_OWN["local"]} if options.store == "delta" else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ConnectServer(conf=conf) as one,
        ConnectServer(conf=conf) as other,
    ):
        remotes = (one.get_url(), other.get_url())
        with delay_commits((one, other), options.delay):
            return race_for_tables(LocalDisk(Path(folder)), remotes, options)


def _read_keys(location: str, options: dict[str, str]) -> set[int]:
    table = DeltaTable(location, storage_options=options)
    result = QueryBuilder().register("t", table).execute("SELECT id FROM t")
    return {row["id"] for row in pa.RecordBatchReader.from_stream(result).read_all().to_pylist()}


def _describe(tally: Tally) -> str:
    return (
        f"{tally.races} races: {tally.acknowledged} loads acknowledged "
        f"({tally.both} races in which both were), {tally.refused} refused, {len(tally.lost)} lost"
    )


def main() -> int:
    """Run the campaign, and print lost loads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--races", type=int, default=100, help="the number of races (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further table after these")
    add_seed(parser)
    parser.add_argument("--store", choices=("provider", "delta"), default="provider", help="(%(default)s)")
    parser.add_argument("--writer", choices=("load", "append"), default="load", help="(%(default)s)")
    parser.add_argument("--delay", type=float, default=0.4, help="at most, in seconds (%(default)s)")
    parser.add_argument("--tables", type=int, default=3, help="at once (%(default)s)")
    parser.add_argument("--place", choices=("s3", "local"), default="s3", help="(%(default)s)")
    options = parser.parse_args()
    options.seed = choose_seed(options.seed)
    tally = race_on_s3(options) if options.place == "s3" else race_on_disk(options)
    print(f"{options.writer} races on {options.place} with {options.store} log store: {_describe(tally)}")
    for line in tally.lost[:20]:
        print(f"    {line}")
    if not tally.races:
        print("  the time did not suffice for a race (use more --minutes)")
    return 0 if tally.races and not tally.lost else 1


if __name__ == "__main__":
    sys.exit(main())
