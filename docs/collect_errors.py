"""Collect the texts of errors from the code: of problems with a path, and of errors raised without a path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIES = "…"
# The codes of errors raised without a path. Checks of one argument raise ValueError.
_CODES = {
    "ConfigError": "config", "DataError": "data", "SetupError": "setup", "ConflictError": "conflict",
    "RiskError": "risk", "JobError": "job", "AirflowApiError": "job", "ValueError": "value",
}  # fmt: skip
_AREAS = {
    "merge_source": "MergeSourceOperator",
    "merge_engine": "MergeEngineOperator",
    "merge_load": "Scd2Operator, DeleteInsertOperator, UpsertOperator",
    "merge_record": "MergeRecordOperator",
    "joiner": "JoinerOperator",
    "undo": "UndoOperator",
    "pipe": "Pipes",
    "delta": "Tables",
}
# The arguments of the function that suggests a valid name.
_SUGGESTION = ("name", "valid_names", "kind")
_OTHERS = "Every operator, the command line"
_WORDS_MIN = 2
_PAIRS = (("(", ")"), ("{", "}"))
# The path, code and message of a problem; its hint is optional.
_PROBLEM_MIN = 3


@dataclass(frozen=True, order=True, slots=True)
class ErrorText:
    """A message with its code and its hint, if the code contains them; ``…`` replaces variable parts."""

    area: str
    code: str
    message: str
    hint: str


def collect_errors(package: Path) -> list[ErrorText]:
    """Return every text once, in the order of operators and codes."""
    errors: set[ErrorText] = set()
    for path in sorted(package.rglob("*.py")):
        area = _find_area(path.relative_to(package))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for texts in (*_collect_calls(tree), *_collect_known(tree)):
            if _is_sentence(texts[1]):
                errors.add(ErrorText(area, *texts))
    order = [*_AREAS.values(), _OTHERS]
    return sorted(errors, key=lambda error: (order.index(error.area), error))


def _find_area(path: Path) -> str:
    names = {*path.parts, path.stem.strip("_"), path.stem.removesuffix("s")}
    if names & {"scd2", "upsert", "delete_insert"}:
        return _AREAS["merge_load"]
    return next((title for name, title in _AREAS.items() if name in names), _OTHERS)


def _collect_calls(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield code, message and hint of the problems and errors that functions build or raise."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args]
        previous = 0
        for call in sorted(calls, key=lambda node: node.lineno):
            called, args = ast.unparse(call.func), call.args
            if called == "Problem" and len(args) >= _PROBLEM_MIN:
                names = _list_assigned(function, previous, call.lineno)
                previous = call.lineno
                yield from _list_alternatives(args[1:4], names)
            elif called in _CODES:
                names = _list_assigned(function, 0, call.lineno)
                yield from ((_CODES[called], *_split_hint(text)) for text in _render_text(args[0], names))


def _list_alternatives(
    args: list[ast.expr], names: Mapping[str, list[ast.expr]]
) -> Iterator[tuple[str, str, str]]:
    """Yield code, message and hint of a problem; what is assigned together belongs together."""
    codes, messages, *hint_lists = ([*_render_text(arg, names)] for arg in args)
    hints = hint_lists[0] if hint_lists else [""]
    if len(messages) == len(hints):
        pairs = list(zip(messages, hints, strict=True))
    else:
        pairs = [(message, hint) for message in messages for hint in hints]
    for number, (message, hint) in enumerate(pairs):
        code = codes[number] if len(codes) == len(pairs) else codes[0]
        yield code, *((message, hint) if hint else _split_hint(message))


def _collect_known(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield code, message and hint from tables that map Spark's errors to those of this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "KnownError":
            kind, message = node.args
            yield _CODES[ast.unparse(kind)], *_split_hint(_render_text(message, {})[0])


def _list_assigned(function: ast.AST, after: int, before: int) -> dict[str, list[ast.expr]]:
    """Return the values that a call between two lines may find in each name.

    These are the values assigned after the line of the previous call; if there are none, the last one before.
    """
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or node.lineno > before:
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        for name, text in pairs:
            if isinstance(name, ast.Name):
                assigned.setdefault(name.id, []).append(text)
    return {name: _select_values(values, after) for name, values in assigned.items()}


def _select_values(values: list[ast.expr], after: int) -> list[ast.expr]:
    values = sorted(values, key=lambda value: value.lineno)
    return [value for value in values if value.lineno > after] or values[-1:]


def _render_text(text: ast.expr, names: Mapping[str, list[ast.expr]]) -> list[str]:
    """Return the possible texts of an expression, as far as they can be derived from the code."""
    if isinstance(text, ast.Constant):
        return [str(text.value)]
    if isinstance(text, ast.JoinedStr):
        return ["".join(_render_part(part) for part in text.values)]
    if isinstance(text, ast.IfExp):
        return [*_render_text(text.body, names), *_render_text(text.orelse, names)]
    if isinstance(text, ast.BoolOp):
        return [alternative for value in text.values for alternative in _render_text(value, names)]
    if isinstance(text, ast.Call) and ast.unparse(text.func) == "suggest_name":
        kind = text.args[2] if len(text.args) == len(_SUGGESTION) else ast.Constant("values")
        return [f"valid {ast.literal_eval(kind)}: {VARIES}"]
    if isinstance(text, ast.Name) and text.id in names:
        return [alternative for value in names[text.id] for alternative in _render_text(value, {})]
    return [VARIES]


def _render_part(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else VARIES


def _split_hint(text: str) -> tuple[str, str]:
    """Split a message from its hint, which follows a colon or a semicolon, or is in parentheses."""
    for separator in (": ", "; "):
        head, _, tail = text.partition(separator)
        if (
            _is_sentence(head)
            and tail
            and all(head.count(left) == head.count(right) for left, right in _PAIRS)
        ):
            return head, tail
    enclosed = re.fullmatch(r"(.*\S) \(([^()]*)\)", text)
    return (enclosed[1], enclosed[2]) if enclosed and enclosed[2] != VARIES else (text, "")


def _is_sentence(text: str) -> bool:
    return len(text.replace(VARIES, "").split()) >= _WORDS_MIN
