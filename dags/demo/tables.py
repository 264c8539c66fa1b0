"""What is in a Delta table, read and written without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


def read(place: Path, columns: str = "*", version: int | None = None) -> list[Row]:
    """Give columns of a table's rows, as they were at a version."""
    rows: list[Row] = _read(place, columns, version).to_pylist()
    return rows


def write(place: Path, rows: Iterable[Row]) -> bool:
    """Make a table hold these rows and no others; say whether that took a new version.

    A table that is as it should be is left alone: a new version would be a change to whoever reads it.
    """
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    rows = sorted(rows, key=lambda row: str(row["_id"]))
    names = dict.fromkeys(name for row in rows for name in row)
    wanted = pa.table({name: [row.get(name) for row in rows] for name in names})
    if DeltaTable.is_deltatable(str(place)):
        found = _read(place, "*", None).sort_by("_id")
        if found.column_names == wanted.column_names and found.cast(wanted.schema).equals(wanted):
            return False
    write_deltalake(str(place), wanted, mode="overwrite", schema_mode="overwrite")
    return True


def entities(place: Path, version: int | None = None) -> list[Row]:
    """Give a merge source's outputs as entities, in the order in which they were made."""
    from pyspark.sql.types import VariantVal

    def entity(row: Row) -> Row:
        content = row["entity"]
        flags = {name: True for name in ("_deleted", "$replaced") if row[name]}
        properties = VariantVal(content["value"], content["metadata"]).toPython() if content else {}
        named = {name: row[name] for name in ("$ids", "_id", "_updated") if row[name] is not None}
        return {**named, **flags, **properties}

    rows = read(place, '"_id", "_updated", "_deleted", "$ids", "$replaced", entity', version)
    return [entity(row) for row in sorted(rows, key=lambda row: int(row["_updated"]))]


def entity_lines(outputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write each entity on a line, its properties in the order of their names."""
    return [json.dumps(output, sort_keys=True, ensure_ascii=False) for output in outputs]


def _read(place: Path, columns: str, version: int | None) -> pa.Table:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    # Not to_pyarrow_table(): it refuses tables with deletion vectors, which this query respects.
    table = DeltaTable(str(place), version=version)
    return pa.table(QueryBuilder().register("t", table).execute(f"SELECT {columns} FROM t").read_all())
