"""The result of one check: its state, the value that was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from airflow_merge_provider.core.errors import MergeError

State = Literal["ok", "warning", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, its state, the value that was found, and what to do about it.

    ``missing`` is what runs need and do not have; ``warning`` is what may be intended.
    """

    name: str
    state: State
    value: str
    remedy: str = ""

    def as_object(self) -> dict[str, str]:
        """Return the check as a JSON object."""
        return {"check": self.name, **{name: text for name, text in asdict(self).items() if name != "name"}}


def collect_checks(name: str, find_checks: Callable[[], Iterable[Check]]) -> list[Check]:
    """Return the checks that a function finds; an error of the function is the result of a check, too.

    :param name: the name of the check that an error results in.
    """
    try:
        return list(find_checks())
    except MergeError as error:
        return [describe_error(name, error)]
    except Exception as error:  # noqa: BLE001 - a broken installation, which this command is for, raises anything
        text = next(iter(str(error).splitlines()), "")
        return [Check(name, "warning", f"cannot be checked: {type(error).__name__}: {text}")]


def describe_error(name: str, error: MergeError) -> Check:
    """Return the check of something that is missing, with the remedy that the error names."""
    if error.problems:
        problem = error.problems[0]
        path = f"{problem.path}: " if problem.path else ""
        return Check(name, "missing", f"{path}{problem.message}", problem.hint)
    first_line = error.message.splitlines()[0]
    value, _, remedy = first_line.rpartition(": ")
    return Check(name, "missing", value or first_line, remedy if value else "")
