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
    first, *others = _compile_parts(pattern)
    if not others:
        return first.fullmatch(text) is not None
    found = first.match(text)
    for part in others[:-1]:
        if found is None:
            return False
        found = part.search(text, found.end())
    if found is None:
        return False
    end = len(pattern) - pattern.rfind("*") - 1
    return len(text) - end >= found.end() and others[-1].match(text, len(text) - end) is not None


def _compile_parts(pattern: str) -> list[re.Pattern[str]]:
    # A cache in this module could not be pickled for Spark's workers; ``re`` has its own cache.
    return [
        re.compile("".join("." if each == "?" else re.escape(each) for each in part), re.DOTALL)
        for part in pattern.split("*")
    ]
