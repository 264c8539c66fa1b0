"""Update of stored file locations after their folder was moved."""

from __future__ import annotations

from typing import Any

LOCATION = "location"
# Values that users define are not changed.
_KEPT = "attributes"


def find_roots(before: str, after: str) -> tuple[str, str]:
    """Return the old and the new root of a move, given a folder below them before and after the move.

    >>> find_roots("/old/lake/state", "/mnt/lake/state")
    ('/old', '/mnt')
    """
    while True:
        parent_before, _, name_before = before.rpartition("/")
        parent_after, _, name_after = after.rpartition("/")
        if name_before != name_after or not parent_before or not parent_after:
            return before, after
        before, after = parent_before, parent_after


def relocate_files(raw: Any, before: str, after: str) -> Any:
    """Return JSON in which the locations of files below one folder are replaced by locations below another.

    >>> relocate_files({"uri": "/old/in/a", "done": {"/old/in/b": "1"}, "key": "/older"}, "/old", "/mnt")
    {'uri': '/mnt/in/a', 'done': {'/mnt/in/b': '1'}, 'key': '/older'}
    """
    if isinstance(raw, str):
        is_inside = raw == before or raw.startswith(f"{before}/")
        return after + raw[len(before) :] if is_inside else raw
    if isinstance(raw, list):
        return [relocate_files(each, before, after) for each in raw]
    if isinstance(raw, dict):
        return {
            relocate_files(name, before, after): each
            if name == _KEPT
            else relocate_files(each, before, after)
            for name, each in raw.items()
        }
    return raw
