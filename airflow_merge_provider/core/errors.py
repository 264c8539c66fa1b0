"""What can go wrong, as values: problems with a path and a remedy, and the errors that carry them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

_PROBLEMS_MAX = 20
_TEXT_MAX = 2000
# A remedy stands at the end of a text.
_END = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where it stands, a stable code, what it is, and what to do about it."""

    path: str
    code: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        way_out = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{way_out}"


class MergeError(Exception):
    """The base of every error of this package; ``retryable`` says whether trying again can help."""

    code: ClassVar[str] = "merge-error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, problems: Iterable[Problem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)

    @classmethod
    def from_problems(cls, problems: Sequence[Problem], found: int | None = None) -> Self:
        """Make one error of all problems; its first line says the first of them, the others are bounded.

        ``found`` is how many there are, where these are only the first of them.
        """
        lines = [_shorten_text(str(problem)) for problem in problems[:_PROBLEMS_MAX]]
        found = found or len(problems)
        if found > 1:
            shown = "" if found == len(lines) else f", the first {len(lines)} here"
            lines = [f"{lines[0]} [1 of {found} problems{shown}]", *(f"- {line}" for line in lines[1:])]
        return cls("\n".join(lines), problems)


class ConfigError(MergeError):
    """Raised when what the user asks for is wrong, whatever the data; nothing has been read."""

    code = "config"


class DataError(MergeError):
    """Raised when the data cannot be merged as asked; nothing has been written."""

    code = "data"


class RiskError(DataError):
    """Raised when a run would change more than it may; ``report`` says what, and nothing has been written."""

    code = "risk"

    def __init__(
        self, message: str, problems: Iterable[Problem] = (), report: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, problems)
        self.report = dict(report or {})

    @classmethod
    def from_problem(cls, problem: Problem, report: Mapping[str, Any]) -> RiskError:
        """Make the error of one problem, with what a person needs to judge it."""
        return cls(str(problem), [problem], report)


class SetupError(MergeError):
    """Raised when something the run needs is not there: Java, a jar, a warehouse, a connection."""

    code = "setup"


class ConflictError(MergeError):
    """Raised when another run committed first; nothing of this one has been written."""

    code = "conflict"
    retryable = True


class JobError(MergeError):
    """Raised when the Spark process failed for a reason of its own; trying again may help."""

    code = "job"
    retryable = True


def _shorten_text(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - _END]} … {text[-_END:]}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word nearest to ``word``, or nothing.

    >>> did_you_mean("equality_set", ["equality", "equality_sets", "identity"])
    "did you mean 'equality_sets'?"
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else ""
