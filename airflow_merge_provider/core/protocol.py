"""The protocol between Airflow and the Spark process: one request file and one result file.

Both are JSON. The version is increased when an old reader would misread a new writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice, SavedPlan
from airflow_merge_provider.core.change_plan.shown_rows import ShownRows
from airflow_merge_provider.core.errors import (
    ConfigError,
    ConflictError,
    DataError,
    JobError,
    MergeError,
    Problem,
    SetupError,
    UnrevertedError,
)
from airflow_merge_provider.core.expectations.result import ExpectationError, FailedExpectations
from airflow_merge_provider.core.population import Population
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.risk import RiskError

PROTOCOL_VERSION: Literal[1] = 1

# The name of a registered job (core/capabilities.py).
Job = str
Until = Literal["plan", "transform", "commit"]
# Which runs need the approval of a person before they commit.
Approval = Literal["never", "on_risk", "always"]


class Message(BaseModel):
    """A frozen part of the protocol; unknown fields are rejected in both directions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Literal[1] = PROTOCOL_VERSION


class RunToken(BaseModel):
    """The identity of a task's run: equal for every attempt, so that a retry finds its own commit.

    ``clear_number`` counts how often the DAG run was cleared: an attempt after a clear is not a retry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    clear_number: int = 0

    @property
    def is_cleared(self) -> bool:
        """Whether the DAG run was cleared, so that an earlier attempt may have committed long ago."""
        return self.clear_number > 0

    def is_same_run(self, stored: Mapping[str, Any] | None) -> bool:
        """Return whether a stored token belongs to this run, before or after it was cleared."""
        identity = self.model_dump(exclude={"clear_number"})
        return stored is not None and all(stored.get(name) == value for name, value in identity.items())

    def is_same_attempt(self, stored: Mapping[str, Any] | None) -> bool:
        """Return whether a stored token belongs to this run and it was not cleared since: a retry."""
        return self.is_same_run(stored) and (stored or {}).get("clear_number", 0) == self.clear_number


class JobRequest(Message):
    """The request of a run: the job, its configuration, the run token, and how far the run goes."""

    job: Job
    config: dict[str, Any]
    run: RunToken
    warehouse: str | None = Field(
        None, description="The location of datasets that are referenced by a bare ID."
    )
    started_at: int = Field(
        description="Microseconds since 1970 UTC; the timestamp of everything that the run writes."
    )
    run_after: int | None = Field(
        None, description="Microseconds since 1970 UTC; no attempt of the run has started earlier."
    )
    until: Until = "commit"
    full_refresh: bool = False
    population: Population | None = Field(
        None, description="The settings that determine the populated flag of the output."
    )
    max_change_ratio: float | None = Field(
        None,
        description="The largest share of the target's rows that a run may change; above it, the run stops.",
    )
    save_plan: bool = Field(
        default=False, description="Whether a run without a commit saves its changed rows beside the target."
    )
    approval: Approval = Field(
        "never", description="Which runs stop before their commit, with a saved plan that can be approved."
    )
    apply_plan: PlanChoice | None = Field(
        None, description="The saved plan whose changes the run commits, exactly or not at all."
    )
    saved_plan: SavedPlan | None = Field(
        None, description="The record of that plan; the job reads it from the plan table."
    )
    allow_single_writer: bool = Field(
        default=False,
        description="Whether the run may write with a log store, or to a file system, that can lose commits.",
    )
    deletion_vectors: bool = Field(
        default=True,
        description="Whether changed rows are marked as deleted in files, instead of writing the files anew.",
    )
    creates_populated: bool = Field(
        default=False,
        description="Whether tables that the run creates are populated at once; the job determines it.",
    )
    flagged_uri: str | None = Field(
        None,
        description="The target that, if it exists, is populated before the commit; the job determines it.",
    )
    shown_rows: ShownRows = Field(
        ShownRows(), description="What the log, the report and errors may show of rows; by default all."
    )
    describes_datasets: bool = Field(
        default=False,
        description="Whether the result describes the datasets of the run, which only lineage needs.",
    )


class DatasetDescription(BaseModel):
    """A dataset as a run has read or written it, as far as its log tells."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: tuple[dict[str, Any], ...] | None = Field(None, description="The columns in Spark's JSON form.")
    version: int | None = Field(None, description="The newest version, if the report contains none.")
    location: str | None = Field(None, description="Where the rows of a catalog table are.")


class JobResult(Message):
    """The result of a successful run; ``report`` is shown to users (XCom ``merge_report``).

    ``datasets`` are described by their URIs, if the request requires it.
    """

    ok: Literal[True] = True
    report: Report
    datasets: dict[str, DatasetDescription] = Field(default_factory=dict)


class JobFailure(Message):
    """The result of a failed run, whose message says whether it may have committed."""

    ok: Literal[False] = False
    code: str
    message: str
    problems: tuple[Problem, ...] = ()
    retryable: bool
    trace: str = ""
    report: Report | FailedExpectations = Field(
        FailedExpectations(),
        description="The changes that a person has to assess, or the expectations that failed.",
    )

    def to_error(self) -> MergeError:
        """Return the failure as the error that was raised in the Spark process."""
        if isinstance(self.report, Report):
            return RiskError(self.message, self.problems, self.report)
        if self.report.expectations:
            return ExpectationError(self.message, self.problems, self.report)
        kinds = (ConfigError, DataError, SetupError, ConflictError, UnrevertedError)
        kind: type[MergeError] = next((kind for kind in kinds if kind.code == self.code), JobError)
        return kind(self.message, self.problems)


def choose_approval(approve: str | None, on_risk: str) -> Approval:
    """Return which runs need an approval, from the arguments of an operator."""
    if approve is not None:
        return "always"
    return "on_risk" if on_risk == "ask" else "never"


def parse_request(text: str) -> JobRequest:
    """Return the request that a file contains.

    :raises ConfigError: if it is not a request of this protocol version.
    """
    try:
        return JobRequest.model_validate_json(text)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        location = ".".join(str(part) for part in detail["loc"])
        problem = Problem(
            location,
            "request",
            f"the request does not match protocol {PROTOCOL_VERSION}: {detail['msg']}",
            "install the same version of the package on the worker and on the Spark driver",
        )
        raise ConfigError.from_problems([problem]) from None


def parse_result(text: str, elapsed: float) -> JobResult | JobFailure:
    """Return the result that a file contains.

    :param elapsed: the seconds that the run took, from its launch on.
    :raises JobError: if it is not a result of this protocol version.
    """
    try:
        result = JobResult.model_validate_json(text)
        return result.model_copy(update={"report": result.report.add_launch_seconds(elapsed)})
    except ValidationError:
        pass
    try:
        return JobFailure.model_validate_json(text)
    except ValidationError as error:
        raise JobError(f"the result does not match protocol {PROTOCOL_VERSION}: {error}") from None
