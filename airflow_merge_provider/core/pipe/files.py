"""Read the pipes of a file, and report the problems of the file itself.

People and programs write these files, so the depth and size of their content are checked before it is
traversed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.model import DEPTH_MAX, require_plain

SUFFIXES = (".json", ".yaml", ".yml")
BYTES_MAX = 10 << 20


def read_pipes(file: Path, parse_yaml: Callable[[str], Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the pipes of a file (one object, or a list of them), each with its path in the file.

    :raises ConfigError: if the file cannot be read, or holds something else.
    """
    content = read_content(file, parse_yaml)
    pipes = content if isinstance(content, list) else [content]
    paths = [f"[{position}]" for position in range(len(pipes))] if isinstance(content, list) else [""]
    problems = [
        Problem(path, "value", "must be an object", 'write {"_id": …, "source": {…}}')
        for path, pipe in zip(paths, pipes, strict=True)
        if not isinstance(pipe, Mapping)
    ]
    if problems:
        raise ConfigError.from_problems(problems)
    return list(zip(paths, pipes, strict=True))


def read_content(file: Path, parse_yaml: Callable[[str], Any]) -> Any:
    """Return the content of a JSON or YAML file.

    :raises ConfigError: if it cannot be read.
    """
    try:
        # Reading a named pipe or a device would never end.
        if not file.is_file():
            raise _refuse_file("", "is not a file" if file.exists() else "does not exist", "")
        if file.stat().st_size > BYTES_MAX:
            raise _refuse_file("", f"is larger than {BYTES_MAX >> 20} MiB", "split it into several files")
        text = file.read_text(encoding="utf-8-sig")
        return parse_json(text) if file.suffix == ".json" else parse_yaml(text)
    except json.JSONDecodeError as error:
        raise _refuse_file(
            f"line {error.lineno}", f"is not valid JSON: {error.msg}", _suggest_remedy(error)
        ) from None
    except OSError as error:
        raise _refuse_file("", f"cannot be read: {error.strerror}", "") from None
    except ValueError as error:
        raise _refuse_file("", f"cannot be read: {error}", "") from None


def parse_json(text: str) -> Any:
    """Return the content of a JSON text.

    :raises ValueError: if it is not JSON, or names a key twice.
    :raises ConfigError: if it is not bounded.
    """
    try:
        content = json.loads(text, object_pairs_hook=build_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH_MAX} levels deep") from None
    require_plain(content)
    return content


def build_object(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values.

    :raises ValueError: if a key is no text, or comes twice: one of its values would be lost in silence.
    """
    built: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise ValueError(f"the key {name!r} is not a string: put it in quotes")  # noqa: TRY004 - what users read
        if name in built:
            raise ValueError(f"the key {name!r} occurs twice in one object: keep one of them")
        built[name] = value
    return built


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not valid JSON")


def _suggest_remedy(error: json.JSONDecodeError) -> str:
    preceding_text = error.doc[: error.pos].rstrip()
    is_comma = preceding_text.endswith(",") or error.doc[error.pos :].startswith(",")
    return "remove the comma before the closing bracket" if is_comma else ""


def _refuse_file(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError.from_problems([Problem(path, "file", message, hint)])
