"""Delta tables with commits of runs, and the real command line on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

Write = Callable[..., str]


@pytest.fixture
def write_run(tmp_path: Path) -> Write:
    """Write the rows of a table with delta-rs, in a commit with the state of a run."""

    def write_rows(
        name: str,
        rows: Sequence[Mapping[str, Any]] | pa.Table,
        state: Mapping[str, Any] | None = None,
        *,
        owner: str | None = None,
        **options: Any,
    ) -> str:
        location = str(tmp_path / name)
        metadata = {"userMetadata": json.dumps(state)} if state else {}
        properties = CommitProperties(custom_metadata=metadata)
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        write_deltalake(location, table, commit_properties=properties, **options)
        if owner is not None:
            name_owner(location, owner)
        return location

    return write_rows


def name_owner(location: str, owner: str) -> None:
    """Set the property that names the capability which writes a table, without a commit of its own.

    delta-rs refuses to create a table with a property that it does not know.
    """
    file = Path(location, "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"]["merge.capability"] = owner
    file.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def build_state(number: int, capability: str = "merge_load", **fields: Any) -> dict[str, Any]:
    """Return the state of a run, as its commit records it."""
    token = {"dag_id": "shop", "task_id": "orders", "run_id": f"r{number}", "started_at": 0}
    return {"capability": capability, "number": number, "token": token, **fields}


def build_result(**rows: int) -> dict[str, Any]:
    """Return the result of a run, as its state records it."""
    counts = {"inserted": 0, "updated": 0, "deleted": 0, "unchanged": 0, **rows}
    return {
        "run_mode": "full", "reason": "the first run", "rows": counts, "counts": {}, "details": {},
        "version_before": None,
    }  # fmt: skip


_MODULE = ("-m", "airflow_merge_provider")


def run_on_terminal(*arguments: str, program: Sequence[str] = _MODULE, **environment: str) -> tuple[int, str]:
    """Run the command line on a terminal, and return its exit code and everything that it wrote.

    :param program: the arguments of Python that name what to run.
    """
    controller, terminal = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "200", **environment}
    unset = {"NO_COLOR", "FORCE_COLOR"} - set(environment)
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        env={name: value for name, value in {**os.environ, **variables}.items() if name not in unset},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    output = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    os.close(controller)
    return process.wait(), output.decode()
