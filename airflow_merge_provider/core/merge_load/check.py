"""The configuration of an SCD2 check: the table, and the snapshot that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_load.load import Condition, dataset_ref, reference_problems
from airflow_merge_provider.core.model import INPUT, Config
from airflow_merge_provider.core.report import Measure

# The invariants of a history, by the names under which a report counts their violations.
INVARIANTS = {
    "empty": "versions whose end is not after their start",
    "overlapping": "versions that start before the previous version of their key ends",
    "valid_twice": "keys with more than one valid version",
    "wrongly_current": "versions whose current flag does not match their validity",
    "repeated": "versions with the same values as the version that ends at their start",
    "surrogates_twice": "surrogate keys of more than one version",
    "not_valid": "keys of the source without a valid version",
    "not_loaded": "keys with a valid version that are not in the source",
}

CHECK_COUNTS = (
    Measure("versions", "versions", "Versions in the history."),
    Measure("keys", "keys", "Keys in the history."),
    Measure("empty", "versions", "Versions whose end is not after their start."),
    Measure("overlapping", "versions", "Versions that start before the previous version of their key ends."),
    Measure("valid_twice", "keys", "Keys with more than one valid version."),
    Measure("wrongly_current", "versions", "Versions whose current flag does not match their validity."),
    Measure("repeated", "versions", "Versions with the same values as the version that ends at their start."),
    Measure("surrogates_twice", "keys", "Surrogate keys of more than one version."),
    Measure("not_valid", "keys", "Keys of the source without a valid version."),
    Measure("not_loaded", "keys", "Keys with a valid version that are not in the source."),
)


class Scd2CheckConfig(Config):
    """A validated SCD2 check. Source: docs/semantics/merge_load.md, History invariants."""

    internal_fields: ClassVar[frozenset[str]] = frozenset({"strategy"})

    strategy: Literal["scd2-check"] = "scd2-check"
    target: Annotated[str, Field(min_length=1), INPUT] = Field(description="The SCD2 history to check.")
    source: Annotated[str | dict[str, Any] | None, BeforeValidator(dataset_ref), INPUT] = Field(
        None, description="The newest snapshot: its keys must be the keys of the valid versions."
    )
    source_filter: Condition = Field(
        None, description="A SQL condition: only source rows that match it were loaded."
    )

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        for path in ("source", "target"):
            if fields.get(path) is not None:
                yield from reference_problems(fields[path], path)
        if fields.get("source_filter") is not None and fields.get("source", "wrong") is None:
            yield Problem(
                "source_filter", "source", "has no effect without source", "set source, or remove it"
            )
