"""Update of stored file locations after their folder was moved."""

from __future__ import annotations

from typing import Any

LOCATION = "location"
# Values that users define are not changed.
_KEPT = "attributes"


def find_roots(old_path: str, new_path: str) -> tuple[str, str]:
    """Return the old and the new root of a move, given a folder below them before and after the move.

    >>> find_roots("/old/lake/state", "/mnt/lake/state")
    ('/old', '/mnt')
    """
    while True:
        old_parent, _, old_name = old_path.rpartition("/")
        new_parent, _, new_name = new_path.rpartition("/")
        if old_name != new_name or not old_parent or not new_parent:
            return old_path, new_path
        old_path, new_path = old_parent, new_parent


def relocate_files(raw: Any, old_folder: str, new_folder: str) -> Any:
    """Return JSON in which the locations of files below one folder are replaced by locations below another.

    >>> relocate_files({"uri": "/old/in/a", "done": {"/old/in/b": "1"}, "key": "/older"}, "/old", "/mnt")
    {'uri': '/mnt/in/a', 'done': {'/mnt/in/b': '1'}, 'key': '/older'}
    """
    if isinstance(raw, str):
        is_inside = raw == old_folder or raw.startswith(f"{old_folder}/")
        return new_folder + raw[len(old_folder) :] if is_inside else raw
    if isinstance(raw, list):
        return [relocate_files(item, old_folder, new_folder) for item in raw]
    if isinstance(raw, dict):
        return {
            relocate_files(name, old_folder, new_folder): value
            if name == _KEPT
            else relocate_files(value, old_folder, new_folder)
            for name, value in raw.items()
        }
    return raw
