"""Measure small runs from start to end: whole processes of the command line, on the shared Spark server.

``python -m benchmarks.start [--rounds N] [--dlt PYTHON]``. A run without changes and runs that cannot succeed
are compared with a process that only opens the table's log, a run of 100 changed rows with dlt on DuckDB in a
Python that has dlt. The first round of changed rows is cold: it starts the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks.measure import Candidate, run_in_turns, write_results

ROWS = 100
JOBS: dict[str, dict[str, Any]] = {
    "upsert": {"job": "upsert", "source": "a", "primary_key": "_id"},
    "scd2": {"job": "scd2", "source": "a"},
    "merge source": {
        "job": "merge_source", "version": 2, "datasets": ["a a", "b b"],
        "equality": [["eq", "a.mail", "b.mail"]],
    },
    "merge engine": {"job": "merge_engine", "source": "a", "primary_key": ["_id"], "incremental": False},
    "joiner": {"job": "joiner", "inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id"},
}  # fmt: skip
# A merge engine that folds a whole source in each run always has work.
WITHOUT_NEWS = {**JOBS, "merge engine": {"job": "merge_engine", "source": "a", "primary_key": ["_id"]}}
MISTAKES: dict[str, dict[str, Any]] = {
    "missing table": {**JOBS["upsert"], "source": "c"},
    "missing column": {**JOBS["upsert"], "primary_key": "id"},
    "wrong type": {**JOBS["joiner"], "join_keys": "a._id = b.number"},
}
_OPEN = "import sys; from deltalake import DeltaTable; DeltaTable(sys.argv[1]).version()"


class Lake:
    """A warehouse in a temporary folder, and processes over it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rounds = folder, 0
        # Only this benchmark uses the server: it is in a folder of its own.
        self.environment = {**os.environ, "TMPDIR": str(folder), "AIRFLOW__MERGE__LOCAL_SPARK": "shared"}
        for name in ("a", "b"):
            self._write_rows(name)

    def change_rows(self) -> None:
        """Change every row of the source."""
        self.rounds += 1
        self._write_rows("a")

    def run_command(self, *arguments: str, expect: int = 0) -> Mapping[str, Any]:
        """Run the command line in a process of its own.

        :raises RuntimeError: if its exit code is another one.
        """
        command = [sys.executable, "-m", "airflow_merge_provider", *arguments]
        return self.run_process(command, expect=expect)

    def run_process(self, command: list[str], *, expect: int = 0) -> Mapping[str, Any]:
        """Run a process, and check its exit code."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != expect:
            raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr}")
        return {}

    def write_config(self, name: str, config: Mapping[str, Any]) -> str:
        """Write the file of a run, and return its path."""
        target = {"target": f"t_{name.replace(' ', '_')}", "warehouse": str(self.folder)}
        path = self.folder / f"{target['target']}.json"
        path.write_text(json.dumps({**target, **config}), encoding="utf-8")
        return str(path)

    def _write_rows(self, name: str) -> None:
        ids = [f"e{number}" for number in range(ROWS)]
        mails = [f"{self.rounds}-{id_}@example.org" for id_ in ids]
        rows = pa.table({"_id": ids, "mail": mails, "number": list(range(ROWS))})
        write_deltalake(str(self.folder / name), rows, mode="overwrite")
        pq.write_table(rows, self.folder / f"{name}.parquet")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first (%(default)s)")
    parser.add_argument("--dlt", metavar="PYTHON", help="a Python that has dlt and DuckDB")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="merge-benchmark-"))
    lake = Lake(folder)
    try:
        changed = _measure_changes(lake, options.rounds, options.dlt)
        _report("100 changed rows, warm", changed, peer="dlt on DuckDB" if options.dlt else None)
        _measure_without_work(lake, options.rounds)
    finally:
        lake.run_command("local-spark", "stop")
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _measure_changes(lake: Lake, rounds: int, dlt: str | None) -> list[Candidate]:
    """Measure runs over changed rows; each candidate changes them before, outside of its time."""
    candidates = []
    for name, config in JOBS.items():
        candidates.append(Candidate(name, partial(lake.run_command, "run", lake.write_config(name, config))))
    if dlt is not None:
        script = Path(__file__).parent / "peers" / "dlt_upsert.py"
        command = [dlt, str(script), str(lake.folder), str(lake.folder / "a.parquet")]
        candidates.append(Candidate("dlt on DuckDB", partial(lake.run_process, command)))
    for _ in range(rounds + 1):
        lake.change_rows()
        run_in_turns(candidates, 0)
    return candidates


def _measure_without_work(lake: Lake, rounds: int) -> None:
    opened = [sys.executable, "-c", _OPEN, str(lake.folder / "a")]
    peer = Candidate("open the log", partial(lake.run_process, opened))
    news = []
    for name, config in WITHOUT_NEWS.items():
        file = lake.write_config(f"{name} again", config)
        lake.run_command("run", file)
        news.append(Candidate(name, partial(lake.run_command, "run", file)))
    run_in_turns([*news, peer], rounds)
    _report("nothing new", [*news, peer], peer=peer.name)
    peer = Candidate("open the log", peer.run)
    mistakes = []
    for name, config in MISTAKES.items():
        code = 2 if name == "wrong type" else 3
        run: Callable[[], Mapping[str, Any]] = partial(
            lake.run_command, "run", lake.write_config(name, config), expect=code
        )
        mistakes.append(Candidate(name, run))
    run_in_turns([*mistakes, peer], rounds)
    _report("mistakes", [*mistakes, peer], peer=peer.name)


def _report(measured: str, candidates: list[Candidate], *, peer: str | None) -> None:
    medians = {candidate.name: candidate.summarize_rounds()["median"] for candidate in candidates}
    ratios = {
        f"{name} / {peer}": median / medians[peer]
        for name, median in medians.items()
        if peer and name != peer
    }
    first = {candidate.name: candidate.rounds[0]["seconds"] for candidate in candidates}
    print(json.dumps({"measured": measured, "first": first, "medians": medians, "ratios": ratios}, indent=1))
    write_results("start", measured, candidates, ratios, {"rows": ROWS})


if __name__ == "__main__":
    sys.exit(main())
