"""Very large inputs: each run ends in bounded time, or fails with the setting to change.

``python -m tests.campaigns.limits [--only NAME …]`` prints seconds and peak memory of each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pyarrow as pa
from deltalake import write_deltalake

from airflow_merge_provider.core.protocol import JobRequest, RunToken

_MEGABYTE = 1 << 20
_CHANGES = 1_000_000
_COLUMNS = 3000
_SECONDS_MAX = 600


@dataclass(frozen=True)
class RunEnd:
    """Exit of a run on the command line, its duration, and the peak memory of its processes."""

    code: int
    output: str
    seconds: float
    megabytes: int

    @property
    def first_line(self) -> str:
        """Return the first line of the error output of a failed run."""
        lines = (line for line in self.output.splitlines() if line.startswith("error: "))
        return next(lines, "")


def run_request(folder: Path, job: str, config: dict[str, Any], *conf: str) -> RunEnd:
    """Run one request from the command line, with its own Spark."""
    request = JobRequest(
        job=job,
        config={"target": "target", **config},
        run=RunToken(dag_id="limits", run_id="r", task_id="t"),
        warehouse=str(folder),
        started_at=1,
    )
    file, log = folder / "request.json", folder / "log.txt"
    file.write_text(request.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "airflow_merge_provider", "run", str(file)]
    settings = [word for setting in conf for word in ("--conf", setting)]
    began, most = time.monotonic(), 0
    with log.open("w", encoding="utf-8") as output:
        process = psutil.Popen([*command, *settings], stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            most = max(most, _measure_memory(process))
            if time.monotonic() - began > _SECONDS_MAX:
                process.kill()
            time.sleep(0.2)
    took = time.monotonic() - began
    return RunEnd(process.returncode, log.read_text(encoding="utf-8"), took, most // _MEGABYTE)


def _measure_memory(process: psutil.Popen) -> int:
    total = 0
    for family_member in (process, *process.children(recursive=True)):
        try:
            total += family_member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def fold_one_key(folder: Path) -> RunEnd:
    """Fold a million changes of one key with every aggregate that collects values, and with numbers."""
    numbers = pa.array(range(_CHANGES), pa.int64())
    texts = pa.array([f"v{number}" for number in range(_CHANGES)])
    offsets = pa.array(range(_CHANGES + 1), pa.int32())
    rows = pa.StructArray.from_arrays([numbers, numbers], ["a", "b"])
    columns = {
        "k": pa.array([1] * _CHANGES, pa.int64()),
        "total": numbers,
        "most": numbers,
        "newest": texts,
        "words": texts,
        "known": texts,
        "items": pa.ListArray.from_arrays(offsets, numbers),
        "entries": pa.MapArray.from_arrays(offsets, texts, numbers),
        "nested": pa.ListArray.from_arrays(offsets, rows),
    }
    write_deltalake(str(folder / "changes"), pa.table(columns))
    functions = {
        "total": "sum", "most": "max", "newest": "last_value", "words": "listagg", "known": "listagg",
        "items": "collect", "entries": "merge_map", "nested": "nested_update",
    }  # fmt: skip
    options = {f"fields.{name}.aggregate-function": function for name, function in functions.items()}
    options |= {"fields.known.distinct": "true", "fields.nested.nested-key": "a"}
    config = {
        "source": "changes",
        "primary_key": ["k"],
        "merge_engine": "aggregation",
        "options": options,
    }
    return run_request(folder, "merge_engine", config, "spark.driver.memory=6g")


def load_many_columns(folder: Path) -> RunEnd:
    """Load a history table of three thousand columns."""
    columns = {"id": pa.array(range(100), pa.int64())}
    columns |= {f"c{number}": pa.array([f"v{number}"] * 100) for number in range(_COLUMNS)}
    write_deltalake(str(folder / "rows"), pa.table(columns))
    return run_request(folder, "merge_load", {"strategy": "scd2", "source": "rows", "natural_key": "id"})


def merge_many_columns(folder: Path) -> RunEnd:
    """Merge entities of three thousand properties."""
    columns = {"_id": pa.array([f"p{number}" for number in range(100)])}
    columns |= {f"c{number}": pa.array([f"v{number}"] * 100) for number in range(_COLUMNS)}
    write_deltalake(str(folder / "persons"), pa.table(columns))
    return run_request(
        folder, "merge_source", {"datasets": ["persons p"], "equality": [["eq", "p._id", "p._id"]]}
    )


def load_one_large_row(folder: Path) -> RunEnd:
    """Load a row of a hundred megabytes."""
    text = pa.array(["x" * (100 * _MEGABYTE), "small"])
    write_deltalake(str(folder / "rows"), pa.table({"id": [1, 2], "text": text}))
    return run_request(folder, "merge_load", {"strategy": "upsert", "source": "rows", "primary_key": "id"})


def exhaust_memory(folder: Path) -> RunEnd:
    """Load a row larger than the heap; the first line has the setting, and increasing it succeeds."""
    text = pa.array(["x" * (200 * _MEGABYTE), "small"])
    write_deltalake(str(folder / "rows"), pa.table({"id": [1, 2], "text": text}))
    config = {"strategy": "upsert", "source": "rows", "primary_key": "id"}
    end = run_request(folder, "merge_load", config, "spark.driver.memory=512m")
    assert end.code != 0, "it has been written"
    assert "spark.driver.memory" in end.first_line, end.output[-3000:]
    # Files without a commit do not count as rows.
    assert not list((folder / "target" / "_delta_log").glob("*.json")), "something was committed"
    again = run_request(folder, "merge_load", config, "spark.driver.memory=6g")
    assert again.code == 0, f"run again: {again.first_line or again.output[-2000:]}"
    return RunEnd(0, end.output, end.seconds, end.megabytes)


LIMITS: dict[str, Callable[[Path], RunEnd]] = {
    function.__name__: function
    for function in (fold_one_key, load_many_columns, merge_many_columns, load_one_large_row, exhaust_memory)
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the limits, and print the cost of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=LIMITS, nargs="+", default=list(LIMITS))
    failed = 0
    for name in parser.parse_args(argv).only:
        with TemporaryDirectory() as folder:
            try:
                end = LIMITS[name](Path(folder))
            except AssertionError as error:
                failed, text = failed + 1, f"failed: {error}"
            else:
                failed += end.code != 0
                text = f"{end.seconds:.0f} s, {end.megabytes} MB"
                text += "" if end.code == 0 else f", failed: {end.first_line or end.output[-2000:]}"
        print(f"  {name}: {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
