"""Tests that names and docstrings follow the language rules in CONTRIBUTING."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or a class of a module; a class has no docstring here."""

    path: Path
    name: str
    is_function: bool
    docstring: str


class Names(NamedTuple):
    """The definitions of all modules, and the variables that they assign, each with its module."""

    definitions: list[Definition]
    variables: set[tuple[Path, str]]

    @property
    def functions(self) -> list[Definition]:
        """All functions except those whose names Python defines."""
        return [one for one in self.definitions if one.is_function and not one.name.startswith("__")]


@pytest.fixture(scope="module")
def names() -> Names:
    """Return the names of all modules; each is parsed once, and its tree is not kept, to save memory."""
    collected = Names([], set())
    for module in MODULES:
        path = module.relative_to(ROOT)
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                definition = Definition(path, node.name, True, ast.get_docstring(node) or "")
                collected.definitions.append(definition)
            elif isinstance(node, ast.ClassDef):
                collected.definitions.append(Definition(path, node.name, False, ""))
            elif (name := _get_variable(node)) is not None:
                collected.variables.add((path, name))
    return collected


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """Return the message and the hint of every error of the package."""
    return [f"{error.message} ({error.hint})" for error in collect_errors(ROOT / "airflow_merge_provider")]


def _list_words(name: str) -> list[str]:
    return [word for word in name.split("_") if word]


def test_functions_are_verb_and_object(names: Names) -> None:
    """Function names have at least two words.

    Properties, fixtures and functions that a framework calls may have one word.
    """
    one_word = [one.name for one in names.functions if len(_list_words(one.name)) == 1]

    assert len(one_word) <= ONE_WORD_MAX * len(names.functions), sorted(one_word)


def test_functions_do_not_begin_with_a_participle(names: Names) -> None:
    """Only a few properties begin with a participle, such as ``restored_version``."""
    first_words = [(one.name, next(iter(_list_words(one.name)), "")) for one in names.functions]
    participles = [name for name, word in first_words if _PARTICIPLE.fullmatch(word) and word not in _VERBS]

    assert len(participles) <= PARTICIPLE_MAX * len(names.functions), sorted(participles)


def test_a_concept_has_one_word(names: Names) -> None:
    """No function and no class has a replaced name."""
    assert [f"{one.path}: {one.name}" for one in names.definitions if one.name in _REPLACED_WORDS] == []


def test_docstrings_are_imperative(names: Names) -> None:
    """The docstring of a function begins with neither give, tell nor say."""
    functions = names.functions
    violations = [one for one in functions if re.match(r"(Give|Tell|Say)\b", one.docstring)]

    assert violations == []


def test_variables_say_what_they_hold(names: Names) -> None:
    """No local variable and no parameter is a bare participle, a pronoun or a metaphor."""
    violations = [f"{path}: {name}" for path, name in names.variables if name.strip("_") in _VAGUE_WORDS]

    assert violations == []


def _get_variable(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


@pytest.mark.parametrize("phrase", _PHRASES, ids=_PHRASES.values())
def test_messages_are_plain(phrase: str, messages: list[str]) -> None:
    """No message and no hint of an error has a phrase that a reader has to decode."""
    assert [message for message in messages if re.search(phrase, message)] == []
