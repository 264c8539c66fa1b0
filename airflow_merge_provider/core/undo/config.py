"""The configuration of an undo, and the counts in its reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.model import OUTPUT, Config
from airflow_merge_provider.core.report import Measure

Version = Annotated[int, Field(ge=0)]
_BOOLEAN_TEXTS = {"True": True, "true": True, "False": False, "false": False, "None": False, "": False}

COUNTS = (
    Measure("runs", "runs", "Runs that were undone."),
    Measure("side_tables", "tables", "Side tables that were restored."),
    Measure("outputs", "files", "Merged files that were withdrawn."),
    Measure("files", "files", "Source files that wait again."),
)


def _parse_run(value: Any) -> Any:
    """Return the ID or the number of a run as text; a param without a value renders as ``None``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None if value in ("", "None") else value


def _parse_flag(value: Any) -> Any:
    """Return a flag; a template renders it as text."""
    return _BOOLEAN_TEXTS.get(value, value) if isinstance(value, str) else value


class UndoConfig(Config):
    """A validated undo; without ``run`` and ``to_version`` it undoes the newest run in force."""

    target: Annotated[str, Field(min_length=1), OUTPUT] = Field(
        description="The Delta table whose runs are undone, or a folder of a merge record."
    )
    run: Annotated[str | None, BeforeValidator(_parse_run)] = Field(
        None, description="The ID or the number of a run, which is undone together with all later ones."
    )
    to_version: Version | None = Field(
        None, description="The version of the target that is restored, with all changes of other writers."
    )

    only: Annotated[bool, BeforeValidator(_parse_flag)] = Field(
        default=False,
        description="Undo the run alone and keep all later ones: a load of an SCD2 history with natural_key.",
    )

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        if fields.get("run") is not None and fields.get("to_version") is not None:
            yield Problem("to_version", "conflict", "cannot be combined with run", "remove one of them")
        if fields.get("only") and fields.get("run", "wrong") is None:
            hint = "set run to the ID or the number of a run"
            yield Problem("only", "requires-option", "requires run", hint)
