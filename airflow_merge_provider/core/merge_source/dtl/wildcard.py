"""Match texts against patterns of ``*`` and ``?``, in time that grows with the length of the text."""

from __future__ import annotations

import re


def matches_wildcard(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a whole text: ``*`` is any characters, ``?`` is one.

    The part between two ``*`` has a fixed length and is matched at its first occurrence, so there is no
    backtracking; a regular expression would try every position of every ``*``.

    >>> matches_wildcard("a*c?", "abcd"), matches_wildcard("a*c", "abcd")
    (True, False)
    """
    first, *later_parts = _compile_parts(pattern)
    if not later_parts:
        return first.fullmatch(text) is not None
    match = first.match(text)
    for part in later_parts[:-1]:
        if match is None:
            return False
        match = part.search(text, match.end())
    if match is None:
        return False
    end = len(pattern) - pattern.rfind("*") - 1
    return len(text) - end >= match.end() and later_parts[-1].match(text, len(text) - end) is not None


def _compile_parts(pattern: str) -> list[re.Pattern[str]]:
    # A cache in this module could not be pickled for Spark's workers; ``re`` has its own cache.
    return [
        re.compile(
            "".join("." if character == "?" else re.escape(character) for character in part), re.DOTALL
        )
        for part in pattern.split("*")
    ]
