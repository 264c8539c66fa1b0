"""Small Delta tables, with or without the properties that this package sets, written without a JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

FLAGGED = {"merge.capability": "joiner", "merge.populated": "true"}
OURS = {"merge.capability": "joiner"}


def create_table(path: Path, rows: int = 1, properties: dict[str, str] | None = None) -> str:
    """Create a table with some rows and properties, and return its path."""
    write_deltalake(path, pa.table({"_id": pa.array(map(str, range(rows)), pa.string())}), mode="append")
    if properties:
        DeltaTable(path).alter.set_table_properties(properties, raise_if_not_exists=False)
    return str(path)
