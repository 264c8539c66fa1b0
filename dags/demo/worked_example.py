"""Define the worked example of the merge source: the inputs and the exact expected outputs."""

from __future__ import annotations

from typing import Any

TARGET = "seed_merged"

A: list[dict[str, Any]] = [{"_id": "a1", "f1": 1}, {"_id": "a2", "f1": 2}]
B: list[dict[str, Any]] = [{"_id": "b1", "f1": 1, "f2": "x"}, {"_id": "b2", "f1": 3}]
C: list[dict[str, Any]] = [
    {"_id": "c1", "f3": "X"},
    {"_id": "c2", "_deleted": True, "f3": "Y"},
    {"_id": "c3", "_deleted": True, "f3": "X"},
]

EXPECTED = """\
{"$ids": ["a1", "b1", "c1"], "_id": "0|a1|1|b1|2|c1", "_updated": 0, "f1": [1, 1], "f2": "x", "f3": "X"}
{"$ids": ["a2"], "_id": "0|a2", "_updated": 1, "f1": 2}
{"$ids": ["b2"], "_id": "1|b2", "_updated": 2, "f1": 3}
{"$ids": ["c2"], "_deleted": true, "_id": "2|c2", "_updated": 3, "f3": "Y"}
{"$ids": ["c3"], "_deleted": true, "_id": "2|c3", "_updated": 4, "f3": "X"}
""".splitlines()
