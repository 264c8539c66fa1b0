"""The configuration of an SCD2 check: the table, and the snapshot that it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from airflow_merge_provider.core.errors import Problem
from airflow_merge_provider.core.merge_load.load import Condition, dataset_ref, reference_problems
from airflow_merge_provider.core.model import Config

# The invariants of a history, by the names under which a report counts their violations.
INVARIANTS = {
    "empty": "versions that do not end after they begin",
    "overlapping": "versions that begin before the one before them has ended",
    "valid_twice": "keys with more than one valid version",
    "wrongly_current": "versions whose current flag does not say whether they are valid",
    "repeated": "versions that say the same as the one that ends where they begin",
    "surrogates_twice": "surrogate keys that more than one version has",
    "not_valid": "keys of the source without a valid version",
    "not_loaded": "valid versions whose key the source does not have",
}


class Scd2CheckConfig(Config):
    """A validated SCD2 check. Source: docs/semantics/merge_load.md, History invariants."""

    strategy: Literal["scd2-check"] = "scd2-check"
    target: Annotated[str, Field(min_length=1)] = Field(description="The history to check.")
    source: Annotated[str | dict[str, Any] | None, BeforeValidator(dataset_ref)] = Field(
        None, description="The newest snapshot: its keys have to be those of the valid versions."
    )
    source_filter: Condition = Field(
        None, description="A SQL condition: only rows of the source that fulfil it were loaded."
    )

    @classmethod
    def check_rules(cls, known: Mapping[str, Any]) -> Iterator[Problem]:
        for path in ("source", "target"):
            if known.get(path) is not None:
                yield from reference_problems(known[path], path)
        if known.get("source_filter") is not None and known.get("source", "wrong") is None:
            yield Problem("source_filter", "source", "has no meaning without source", "leave it out")
