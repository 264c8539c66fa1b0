"""Which pipes does a file hold, and what is wrong with it as a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, Problem

SUFFIXES = (".json", ".yaml", ".yml")


def pipes_in(file: Path, read_yaml: Callable[[str], Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Give the pipes of a file, each with its path in it: one object, or a list of them.

    :raises ConfigError: when the file cannot be read, or holds something else.
    """
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else read_yaml(text)
    except json.JSONDecodeError as error:
        raise _wrong(f"line {error.lineno}", f"is not JSON: {error.msg}", _remedy(error)) from None
    except (OSError, ValueError) as error:
        raise _wrong("", f"cannot be read: {error}", "") from None
    found = content if isinstance(content, list) else [content]
    paths = [f"[{place}]" for place in range(len(found))] if isinstance(content, list) else [""]
    problems = [
        Problem(path, "value", "must be an object", 'a pipe is {"_id": …, "source": {…}}')
        for path, pipe in zip(paths, found, strict=True)
        if not isinstance(pipe, Mapping)
    ]
    if problems:
        raise ConfigError.of(problems)
    return list(zip(paths, found, strict=True))


def _remedy(error: json.JSONDecodeError) -> str:
    before = error.doc[: error.pos].rstrip()
    is_comma = before.endswith(",") or error.doc[error.pos :].startswith(",")
    return "take the comma before the closing bracket out" if is_comma else ""


def _wrong(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError.of([Problem(path, "file", message, hint)])
