"""Short forms of lineage for comparisons in tests, and schemas to trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_merge_provider.core.run.lineage_model import ColumnLineage, InputColumn


def build_fields(*names: str, **kinds: Any) -> list[dict[str, Any]]:
    """Return string columns, then columns with a type, in Spark's JSON form."""
    columns = {**dict.fromkeys(names, "string"), **kinds}
    return [{"name": name, "type": kind, "nullable": True} for name, kind in columns.items()]


def show_sources(sources: Sequence[InputColumn]) -> list[str]:
    """Return each input column as text; a masking transformation ends with a star."""
    return [
        f"{source.dataset}.{source.column} {source.subtype}{'*' if source.is_masking else ''}"
        for source in sources
    ]


def show_columns(lineage: ColumnLineage) -> dict[str, list[str]]:
    """Return the input columns of each column as texts."""
    return {name: show_sources(sources) for name, sources in lineage.columns.items()}
