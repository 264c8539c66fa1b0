"""Read an error of Spark and its causes, from Python, the JVM and gRPC: classes, conditions and messages.

A message can contain values of rows, and a value can be any text, also one that looks like another error. So
classes and conditions decide what an error is, and messages only if they cannot contain values.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, functions as F

from airflow_merge_provider.core.change_plan.shown_rows import (
    is_free_of_values,
    mask_error,
    mask_problem,
    mask_text,
)

_CONDITION_PATTERN = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] *")
_STATE_PATTERN = re.compile(r"SQLSTATE: (\w{5})\b")
# A file cannot be read because of its content, or because of what lies between it and Spark.
OF_A_FILE = "FAILED_READ_FILE"
# SQLSTATEs of errors whose messages have values: data, constraints, functions, and what expressions raise.
_VALUE_STATES = re.compile(r"2[123]|3[89]|42|P0")
# What Spark Connect writes before a message whose class PySpark does not know.
_UNKNOWN_CLASS = re.compile(r"\(((?:[a-z_]\w*\.)+[\w$]+)\) ")
_JVM_STACK = "\n\nJVM stacktrace:\n"
# The beginning of an error that Py4J reports, before the stack of the JVM.
_CALL_FAILED = "An error occurred while calling"
# An error of a client of gRPC; a server answers with others, and with these states.
_RPC = re.compile(
    r"<_\w+ of RPC that terminated with:\s+status = (StatusCode\.\w+)(?:\s+details = \"([^\n]*)\")?"
)
_ANSWERED = ("StatusCode.INTERNAL", "StatusCode.UNKNOWN")
# The message of an aborted job contains the error of its last task, with a stack.
_LAST_FAILURE = re.compile(r"\(TID \d+\) \([^()\n]*\): ")
# What users have named, in a message without values: quoted names, where an apostrophe stands after a letter,
# statements, and locations, which have blanks perhaps, but not before a colon.
_USER_TEXT = re.compile(
    r"(?<!\w)(['\"`])(?:(?!\1).)*\1(?!\w)|\n== SQL[\s\S]*"
    r"|(?<![^\s/])[^\s/]*/(?:(?:(?!: |\):)[^\n])*/)?(?:(?!\):)\S)*"
)
_CAUSE_PATTERN = re.compile(
    r"(?:\A:? ?|^Caused by: )((?:[a-z_]\w*\.)*[A-Z][\w$]*)(?::? ?(.*?))?"
    r"(?=\n\s+(?:at |\.\.\. \d)|\nCaused by: |\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
)


# An error that an expression of this process raises begins so, with the length of its origin: no value can.
_OWN = f"[{secrets.token_hex(8)}:"
_OWN_HEAD = re.compile(rf"{re.escape(_OWN)}(\d+)\] ")


class Cause(NamedTuple):
    """One error of a chain: its class, the condition and the SQLSTATE of Spark, and its message.

    ``has_values`` is whether its message may contain values that are not in quotes. ``problem`` is what an
    expression of this package has raised, the message is what comes before.
    """

    name: str
    condition: str
    state: str
    message: str
    has_values: bool
    problem: str = ""

    @property
    def shown_line(self) -> str:
        """The first line of the error as it may be shown, with its condition or its class."""
        head = f"[{self.condition}]" if self.condition else f"{self.name}:"
        line = (self.problem or self.message).strip().partition("\n")[0]
        if self.problem:
            return f"{head} {self.message}{mask_problem(line)}"
        if self.has_values:
            return f"{head} {mask_text(line)}"
        return f"{head} {line}" if self.condition else mask_error(f"{head} {line}")

    @property
    def is_of_values(self) -> bool:
        """Whether values caused the error: then what follows in a stack may be a line of a value."""
        return _VALUE_STATES.match(self.state) is not None or self.name.endswith("PythonException")

    @property
    def known_text(self) -> str:
        """What may tell the kind of the error: condition, class, and a message without names of users."""
        # The message of a file that cannot be read has its path only, which has values of partitions.
        has_text = not self.has_values and not self.condition.startswith(OF_A_FILE)
        return f"{self._head}{_USER_TEXT.sub('', self.message) if has_text else ''}"

    @property
    def named_text(self) -> str:
        """What may have the name of the error: its condition, or without one its class and its message."""
        has_name = self.condition and not self.condition.startswith("_LEGACY")
        return self._head if has_name else self.known_text

    @property
    def _head(self) -> str:
        return f"{self.condition} {self.name}: "


def raise_problem(origin: Column, problem: Column) -> Column:
    """Return an expression that raises an error, of which only the values are masked.

    :param origin: what is shown before the problem, such as a file; it has no values.
    :param problem: begins with its column, or without a name, and has values only in quotes.
    """
    return F.raise_error(F.concat(F.lit(_OWN), F.length(origin), F.lit("] "), origin, problem))


def list_causes(error: BaseException | None) -> list[Cause]:
    """Return an error and its causes, the outermost first."""
    causes: list[Cause] = []
    visited_ids: set[int] = set()
    while error is not None and id(error) not in visited_ids:
        visited_ids.add(id(error))
        causes += _read_error(error)
        error = error.__cause__
    return causes


def _read_error(error: BaseException) -> Iterator[Cause]:
    text = str(error)
    is_of_spark = isinstance(error, PySparkException)
    if (is_of_spark or type(error).__module__.startswith("grpc")) and (status := _find_status(error, text)):
        yield status
    elif isinstance(error, PySparkException):
        yield from _read_spark_error(error, text)
    elif text.startswith(_CALL_FAILED):
        yield from _read_stack(text.partition("\n")[2])
    else:
        name = type(error).__name__
        yield Cause(name, "", "", text, not isinstance(error, OSError) and not is_free_of_values(f"{name}: "))


def _find_status(error: BaseException, text: str) -> Cause | None:
    """Return the state of a call that a server has not answered; None if it has."""
    if error_condition(error):
        return None
    call = _RPC.match(text)
    status = call[1] if call else str(getattr(error, "getGrpcStatusCode", str)())
    if not status.startswith("StatusCode.") or status in _ANSWERED:
        return None
    return Cause(status, "", "", (call and call[2]) or text, has_values=False)


def _read_spark_error(error: PySparkException, text: str) -> Iterator[Cause]:
    message, _, stack = text.partition(_JVM_STACK)
    message, *failures = _LAST_FAILURE.split(message)
    own_class = _UNKNOWN_CLASS.match(message)
    # A Connect server may hide the stack in the text.
    causes = list(_read_stack(stack or getattr(error, "getStackTrace", str)() or ""))
    name = own_class[1] if own_class else causes[0].name if causes else type(error).__name__
    cause = _build_cause(name, message[own_class.end() :] if own_class else message)
    is_analysis = isinstance(error, AnalysisException)
    cause = cause._replace(
        condition=error.getCondition() or cause.condition,
        state=error.getSqlState() or cause.state,
        has_values=cause.has_values and not is_analysis,
    )
    yield cause
    if is_analysis or not cause.is_of_values:
        for failure in failures:
            yield from _read_stack(failure)
        yield from causes[1:]


def _read_stack(stack: str) -> Iterator[Cause]:
    """Yield the errors of a stack of the JVM, to the first that values caused."""
    text = _LAST_FAILURE.sub("\nCaused by: ", stack)
    for match in _CAUSE_PATTERN.finditer(text):
        cause = _build_cause(match[1], match[2] or "")
        if cause.condition and not cause.state and (state := _STATE_PATTERN.search(text, match.end())):
            # Its message goes on after a line that looks like another error.
            cause = cause._replace(state=state[1])
        yield cause
        if cause.is_of_values:
            return


def _build_cause(name: str, message: str) -> Cause:
    condition = _CONDITION_PATTERN.match(message)
    has_values = not is_free_of_values(message) and not is_free_of_values(f"{name}: {message}")
    if condition is None:
        return Cause(name, "", "", message, has_values)
    # A value stands before what Spark adds.
    states = _STATE_PATTERN.findall(message)
    state, message = states[-1] if states else "", message[condition.end() :]
    if own := _OWN_HEAD.match(message):
        end = own.end() + int(own[1])
        return Cause(
            name, condition[1], state, message[own.end() : end], has_values=False, problem=message[end:]
        )
    return Cause(name, condition[1], state, message, has_values)


def error_condition(error: BaseException) -> str:
    """Return Spark's error condition, such as PATH_NOT_FOUND, or an empty string."""
    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""
