"""A saved plan: what its changes were computed from, so that a later run can commit exactly these changes.

The changed rows are in the table ``<target>__plan``; the commit of that table holds this record. A run that
applies the plan reads the same versions of the sources again, with the same time, and compares the digest of
its changes with that of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.errors import Problem

PLAN_SUFFIX = "__plan"
# The writer of plan tables, and the key of the record in the metadata of their commits.
PLAN = "plan"


class PlanChoice(BaseModel):
    """The saved plan that a run applies, and who has approved it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int | None = Field(None, description="The version of the plan table; null for the newest.")
    digest: str | None = Field(
        None, description="The digest of its changes; null if nobody has seen them. Another plan is refused."
    )
    approved_by: str | None = Field(None, description="The user who has approved the plan.")
    exists: bool = Field(
        default=True,
        description="Whether there is a plan; false if the run that was to save it had nothing to do.",
    )


class SavedPlan(BaseModel):
    """The record of a saved plan."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str = Field(description="The capability that planned.")
    config: dict[str, Any] = Field(description="The configuration of the plan.")
    full_refresh: bool = Field(description="Whether the plan processes all input.")
    target_version: int | None = Field(description="The version of the target; null if there was none.")
    rows_id: str | None = Field(
        None,
        description="What identifies the rows of the target: the version and the digest of the commit that "
        "was the last to change them; null if there was no target.",
    )
    offsets: dict[str, Any] = Field(description="The versions of the sources.")
    started_at: int = Field(description="The time of the plan, in microseconds since 1970 UTC.")
    digest: str = Field(description="The digest of the changed rows.")

    def list_changed_settings(self, config: Mapping[str, Any], *, full_refresh: bool) -> list[str]:
        """Return the names of the settings that differ from those of the plan."""
        names = {**self.config, **config}
        changed_names = [name for name in names if self.config.get(name) != config.get(name)]
        return [*changed_names, *(["full_refresh"] if full_refresh != self.full_refresh else [])]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self | None:
        """Read the record from the metadata of a commit of a plan table; None if it has none."""
        record = metadata.get(PLAN)
        return cls.model_validate(record) if isinstance(record, Mapping) else None


def describe_outdated(reason: str) -> Problem:
    """Return the problem of a saved plan that cannot be applied."""
    hint = "nothing was committed: check the new plan and apply it"
    return Problem("plan", "outdated-plan", f"the plan is outdated: {reason}", hint)
