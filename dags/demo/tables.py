"""Read and write Delta tables without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# The options of delta-rs for an object store.
Options = Mapping[str, str] | None


def read_rows(
    path: Path | str, columns: str = "*", version: int | None = None, options: Options = None
) -> list[Row]:
    """Return columns of a table's rows, as they were at a version."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    # A query supports deletion vectors; to_pyarrow_table() does not.
    table = DeltaTable(str(path), version=version, storage_options=_copy_options(options))
    query = f"SELECT {columns} FROM source"
    rows = pa.table(QueryBuilder().register("source", table).execute(query).read_all())
    return list(rows.to_pylist())


def write_rows(path: Path | str, rows: Iterable[Row], options: Options = None) -> bool:
    """Replace the content of a table with these rows; return whether a new version was written.

    A table that already has these rows is not written: readers would treat a new version as a change.
    """
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    row_list = list(rows)
    names = dict.fromkeys(name for row in row_list for name in row)
    sorted_rows = _sort_rows({name: row.get(name) for name in names} for row in row_list)
    storage_options = _copy_options(options)
    if (
        DeltaTable.is_deltatable(str(path), storage_options)
        and _sort_rows(read_rows(path, options=options)) == sorted_rows
    ):
        return False
    write_deltalake(
        str(path),
        pa.Table.from_pylist(sorted_rows),
        mode="overwrite",
        schema_mode="overwrite",
        storage_options=storage_options,
    )
    return True


def read_entities(path: Path | str, version: int | None = None, options: Options = None) -> list[Row]:
    """Return a merge source's outputs as entities, in the order in which they were created."""
    from pyspark.sql.types import VariantVal

    def entity(row: Row) -> Row:
        content = row["entity"]
        flags = {name: True for name in ("_deleted", "$replaced") if row[name]}
        properties = VariantVal(content["value"], content["metadata"]).toPython() if content else {}
        named = {name: row[name] for name in ("$ids", "_id", "_updated") if row[name] is not None}
        return {**named, **flags, **properties}

    rows = read_rows(path, '"_id", "_updated", "_deleted", "$ids", "$replaced", entity', version, options)
    return [entity(row) for row in sorted(rows, key=lambda row: int(row["_updated"]))]


def has_table(path: str, options: Options = None) -> bool:
    """Return whether there is a table."""
    from deltalake import DeltaTable

    return bool(DeltaTable.is_deltatable(path, _copy_options(options)))


def entity_lines(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each entity as a line of text, with its properties in alphabetical order."""
    return [json.dumps(output, sort_keys=True, ensure_ascii=False) for output in outputs]


def _copy_options(options: Options) -> dict[str, str] | None:
    return dict(options) if options else None


def _sort_rows(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: str(row["_id"]))
