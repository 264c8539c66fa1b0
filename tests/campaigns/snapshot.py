"""Content below a folder after runs: the rows of all tables and the records of all files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from airflow_merge_provider.core.merge_record.landing import SIDECAR
from tests.campaigns.workloads import BAD

Content = dict[str, list[str]]
# Columns that count runs, or ids: values that an undone run assigned are not assigned again.
NUMBERS_OF_RUNS = ("_run", "run", "_updated", "_previous")
NUMBERS_OF_IDS = ("$stable_id", "_hash")


def read_folder(folder: str, location: str = "") -> Content:
    """Return the content of each table and each landing folder, as sorted texts.

    The folder may be a copy of a lake at another location, which its rows contain.
    """
    root = Path(folder)
    tables = sorted(path.parent for path in root.rglob("_delta_log"))
    contents = {str(table.relative_to(root)): read_table(table, location) for table in tables}
    if (root / "in").is_dir():
        return contents | _read_landing(root)
    return contents


def read_table(table: Path, location: str = "") -> list[str]:
    """Return the rows of a Delta table as sorted texts, with locations relative to the warehouse."""
    rows = QueryBuilder().register("rows", DeltaTable(str(table))).execute("SELECT * FROM rows")
    texts = (json.dumps(row, sort_keys=True, default=str) for row in _list_rows(rows))
    return sorted(text.replace(location or str(table.parent), "") for text in texts)


def compare_folders(expected: Content, actual: Content) -> None:
    """Check that two folders have the same content; the error has the additional and missing rows."""
    for name in sorted({*expected, *actual}):
        want, have = Counter(expected.get(name, ["no table"])), Counter(actual.get(name, ["no table"]))
        if want != have:
            more, less = list((have - want).elements())[:3], list((want - have).elements())[:3]
            counts = f"{(have - want).total()} more and {(want - have).total()} less"
            raise AssertionError(f"{name}: {counts}, more {more}, less {less}")


def count_commits(table: Path, run_id: str) -> int:
    """Return the number of commits of a table with the token of a run."""
    count = 0
    for path in (table / "_delta_log").glob("*.json"):
        for line in path.read_text(encoding="utf-8").splitlines():
            text = json.loads(line).get("commitInfo", {}).get("userMetadata") or "{}"
            metadata = json.loads(text) if text.startswith("{") else {}
            token = metadata.get("token") or {}
            count += token.get("run_id") == run_id and "number" in metadata
    return count


def is_staged(path: Path) -> bool:
    """Return whether a file is not published yet, or will be removed by the next run."""
    return any(name.startswith("_staging-") for name in path.parts)


def list_record_ids(root: Path, *folders: str) -> Counter[str]:
    """Return how often each record of a landing folder is there, merged or failed, or in these folders."""
    paths = (path for name in folders or ("merged", "failure") for path in (root / name).rglob("*.json"))
    files = (path for path in paths if SIDECAR not in path.name and not is_staged(path))
    return Counter(record_id for path in files for record_id in list_ids(path.read_text("utf-8")))


def list_ids(content: str) -> list[str]:
    """Return the ids of the records of a file; an invalid record has none."""
    return [] if content == BAD else [json.loads(line)["id"] for line in content.splitlines()]


def drop_empty_tables(content: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the tables with rows: a table without rows is like none."""
    return {name: rows for name, rows in content.items() if rows}


def drop_columns(row: str, dropped: tuple[str, ...]) -> str:
    """Return a row without the given columns and without those that are NULL."""
    try:
        values = json.loads(row)
    except ValueError:
        return row
    if not isinstance(values, dict):
        return row
    kept_values = {name: value for name, value in values.items() if value is not None and name not in dropped}
    return json.dumps(kept_values, sort_keys=True)


def _list_rows(rows: Any) -> list[dict[str, Any]]:
    return list(pa.table(rows.read_all()).to_pylist())


def _read_landing(root: Path) -> dict[str, list[str]]:
    """Return the content of every file, by folder, and check that outputs and manifests match."""
    contents = {}
    for name in ("in", "merged", "failure", "original"):
        files = [path for path in (root / name).rglob("*") if path.is_file() and not is_staged(path)]
        contents[name] = sorted(path.read_text() for path in files if not path.name.endswith(SIDECAR))
        contents[f"{name} (sidecars)"] = [str(sum(path.name.endswith(SIDECAR) for path in files))]
    outputs = Counter(
        path.name for path in (root / "merged").glob("merged-*") if not path.name.endswith(SIDECAR)
    )
    manifests = [json.loads(path.read_text()) for path in (root / "state" / "manifests").glob("*")]
    committed = Counter(Path(manifest["uri"]).name for manifest in manifests if manifest.get("uri"))
    contents["outputs without a manifest"] = sorted(outputs - committed)
    contents["manifests without an output"] = sorted(committed - outputs)
    contents["claimed"] = sorted(path.name for path in root.rglob(".claimed-*"))
    return contents
