"""Problems (a path, a message and a remedy) and the exceptions that carry them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

_SHOWN_PROBLEMS_MAX = 20
_SUGGESTED_NAMES_MAX = 20
_TEXT_MAX = 2000
# The number of characters kept at the end of a long text, where the remedy stands.
_TRACE_END_MAX_CHARS = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its path, a stable code, a message, and what to do about it."""

    path: str
    code: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        prefix = f"{self.path}: " if self.path else ""
        suffix = f" ({self.hint})" if self.hint else ""
        return f"{prefix}{self.message}{suffix}"


class MergeError(Exception):
    """The base class of all errors of this package; ``retryable`` states whether a retry can succeed."""

    code: ClassVar[str] = "merge-error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)

    @classmethod
    def from_problems(cls, problems: Sequence[Problem], problem_count: int | None = None) -> Self:
        """Build one error from all problems; its first line shows the first one, and the others are limited.

        ``problem_count`` is the total number of problems if ``problems`` holds only the first of them.
        """
        lines = [_shorten_text(str(problem)) for problem in problems[:_SHOWN_PROBLEMS_MAX]]
        problem_count = problem_count or len(problems)
        if problem_count > 1:
            suffix = "" if problem_count == len(lines) else f", first {len(lines)} shown"
            lines = [
                f"{lines[0]} [1 of {problem_count} problems{suffix}]",
                *(f"- {line}" for line in lines[1:]),
            ]
        return cls("\n".join(lines), problems)


class ConfigError(MergeError):
    """Raised when the configuration is wrong, whatever the data; nothing has been read."""

    code = "config"


class DataError(MergeError):
    """Raised when the data cannot be merged as configured; nothing has been written."""

    code = "data"


class OutdatedPlanError(DataError):
    """Raised when the changes of a run are not those of the plan that it applies; nothing was committed."""


class SetupError(MergeError):
    """Raised when a prerequisite of the run is missing: Java, a jar, a warehouse, a connection."""

    code = "setup"


class ConflictError(MergeError):
    """Raised when another run committed first; nothing of this run has been written."""

    code = "conflict"
    retryable = True


class UnrevertedError(MergeError):
    """Raised when a commit does not include a change of another writer, and could not be reverted."""

    code = "unreverted"


class JobError(MergeError):
    """Raised when the Spark process failed for a reason of its own; a retry may succeed."""

    code = "job"
    retryable = True


def _shorten_text(text: str) -> str:
    return (
        text
        if len(text) <= _TEXT_MAX
        else f"{text[: _TEXT_MAX - _TRACE_END_MAX_CHARS]} … {text[-_TRACE_END_MAX_CHARS:]}"
    )


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """Return a hint with the valid name that is most similar to ``name``, or an empty string.

    >>> did_you_mean("equality_set", ["equality", "equality_sets", "identity"])
    "did you mean 'equality_sets'?"
    """
    matches = difflib.get_close_matches(name, list(valid_names), n=1, cutoff=0.6)
    return f"did you mean '{matches[0]}'?" if matches else ""


def suggest_name(name: str, valid_names: Iterable[str], kind: str = "values") -> str:
    """Return a hint for an unknown name: the most similar valid name, or else the first twenty valid names.

    >>> suggest_name("size", ["equality", "identity"], "options")
    'valid options: equality, identity'
    """
    names = list(valid_names)
    shown = names if len(names) <= _SUGGESTED_NAMES_MAX else [*names[:_SUGGESTED_NAMES_MAX], "…"]
    return did_you_mean(name, names) or f"valid {kind}: {', '.join(shown)}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or the plural.

    >>> format_count(1, "row"), format_count(2, "row")
    ('1 row', '2 rows')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
