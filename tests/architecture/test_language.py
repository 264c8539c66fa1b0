"""Tests that names and docstrings follow the language rules in CONTRIBUTING."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from collect_errors import collect_errors

ROOT = Path(__file__).parents[2]
FOLDERS = ("airflow_merge_provider", "tests", "benchmarks", "dags", "docs")
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]

ONE_WORD_MAX = 0.10
PARTICIPLE_MAX = 0.02
# Verbs whose first word looks like a participle.
_VERBS = frozenset({"need", "feed", "embed", "bring"})
_PARTICIPLE = re.compile(
    r".*[^aeiou]ed|.*(ing|eed)|told|made|kept|found|seen|said|known|held|left|sent|written|given|taken|drawn"
)
# Replaced names of concepts; CONTRIBUTING lists them with the current names.
_REPLACED_WORDS = frozenset(
    {
        "Asked", "Before", "Beside", "Crowd", "Gained", "HandedOn", "Hub", "INSIDE", "Intake", "Judge",
        "Look", "LookAgainError", "Meeting", "Memory", "Outcome", "Past", "Sight", "Solved", "Unmatched",
        "Wanted", "Watch", "Weighed", "alive", "contracted", "course", "evidence", "lateness", "planned_once",
        "said", "separation", "ship", "side_by_side", "succession", "take_in", "told", "untold", "walked",
        "weighed",
    }
)  # fmt: skip

# Words that do not say what a variable holds: participles, pronouns and metaphors.
_VAGUE_WORDS = frozenset(
    {
        "alive", "alone", "anew", "asked", "beside", "each", "found", "given", "gone", "kept",
        "known", "look", "looks", "made", "many", "meant", "others", "ours", "past", "place",
        "places", "rest", "said", "seen", "sight", "sights", "taken", "things", "told", "wanted", "way",
        "ways", "what", "who", "whole", "wish", "words",
    }
)  # fmt: skip
# Phrases that a message can do without, each with its plain form.
_PHRASES = {
    r"(?<!there )\bis no (?!longer|more than)": "is not a valid …",
    r"\bhas no meaning\b": "is not supported with …",
    r"\bcannot be (had|told)\b": "is not supported, cannot be determined",
    r"\bstands beside\b": "cannot be combined with …",
    r"\bany more\b": "no longer",
    r"\banew\b": "again",
    r"\b(ask|asks|asked) for\b": "set",
    r"\blook whether\b": "check whether",
    r"\b(we|our|ours)\b": "this package",
    r"\ba text\b": "a string",
    r"\bwhole numbers?\b": "integer",
    r"\bno moment\b": "not a valid timestamp",
}


def _parse_modules() -> Iterator[tuple[Path, ast.AST]]:
    for path in MODULES:
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def _list_functions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return all functions except those whose names Python defines."""
    return [
        (path, node)
        for path, tree in _parse_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__")
    ]


def _list_words(name: str) -> list[str]:
    return [word for word in name.split("_") if word]


def test_functions_are_verb_and_object() -> None:
    """Function names have at least two words.

    Properties, fixtures and functions that a framework calls may have one word.
    """
    functions = _list_functions()
    one_word = [node.name for _, node in functions if len(_list_words(node.name)) == 1]

    assert len(one_word) <= ONE_WORD_MAX * len(functions), sorted(one_word)


def test_functions_do_not_begin_with_a_participle() -> None:
    """Only a few properties begin with a participle, such as ``restored_version``."""
    functions = _list_functions()
    first_words = [(node.name, next(iter(_list_words(node.name)), "")) for _, node in functions]
    participles = [name for name, word in first_words if _PARTICIPLE.fullmatch(word) and word not in _VERBS]

    assert len(participles) <= PARTICIPLE_MAX * len(functions), sorted(participles)


def test_a_concept_has_one_word() -> None:
    """No function and no class has a replaced name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    violations = [
        f"{path}: {node.name}"
        for path, tree in _parse_modules()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.name in _REPLACED_WORDS
    ]

    assert violations == []


def test_docstrings_are_imperative() -> None:
    """The docstring of a function begins with neither give, tell nor say."""
    violations = [
        f"{path}: {node.name}"
        for path, node in _list_functions()
        if re.match(r"(Give|Tell|Say)\b", ast.get_docstring(node) or "")
    ]

    assert violations == []


def test_variables_say_what_they_hold() -> None:
    """No local variable and no parameter is a bare participle, a pronoun or a metaphor."""
    violations = [
        f"{path}: {name}"
        for path, tree in _parse_modules()
        for node in ast.walk(tree)
        if (name := _get_variable(node)) is not None and name.strip("_") in _VAGUE_WORDS
    ]

    assert violations == []


def _get_variable(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


@pytest.mark.parametrize("phrase", _PHRASES, ids=_PHRASES.values())
def test_messages_are_plain(phrase: str) -> None:
    """No message and no hint of an error has a phrase that a reader has to decode."""
    errors = collect_errors(ROOT / "airflow_merge_provider")
    violations = [error for error in errors if re.search(phrase, f"{error.message} ({error.hint})")]

    assert violations == []
