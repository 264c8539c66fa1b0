"""Generate entities with known clusters: three datasets of people who share e-mail addresses and phones.

Of all entities 60 % are singletons, 25 % are in groups of 2 to 4, 10 % in chains of 10 to 50, and 5 % in
clusters of up to 5 000 entities with one shared key. The same arguments produce the same bytes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

DATASETS = ("A", "B", "C")
RULES = [
    ["eq", f"{left}.{key}", f"{right}.{key}"]
    for key in ("email", "phone")
    for left, right in (("a", "b"), ("b", "c"), ("a", "c"))
]
_NAMES = np.array(["Anna", "Bo", "Carl", "Dora", "Eva", "Finn", "Gro", "Hans", "Ida", "Jon"])
_CITIES = np.array(["Oslo", "Bergen", "Roma", "Paris", "Wien", "Praha", "Berlin"])


def write_datasets(folder: Path, size: int, seed: int = 7, *, versions: bool = False) -> int:
    """Write the datasets as Delta tables below ``folder``, once; return the number of clusters.

    :param size: the number of entities in all datasets together.
    :param versions: number the rows in ``_updated`` and flag deletions in ``_deleted``, so that later
        versions can be added.
    """
    truth = folder / "clusters.txt"
    if truth.exists():
        return int(truth.read_text(encoding="utf-8"))
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(seed)
    sizes, kinds = _draw_clusters(rng, size)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(cluster)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chained = kinds[cluster] == 1
    # Neighbours in a chain share alternately an address and a number; all others share the address.
    email = np.where(chained, cluster * 100 + position // 2, cluster * 100)
    phone = np.where(chained, cluster * 100 + (position + 1) // 2, -1)
    dataset = (cluster + position) % len(DATASETS)
    for offset, name in enumerate(DATASETS):
        mine = rng.permutation(np.flatnonzero(dataset == offset))
        rows = _build_rows(rng, name.lower(), email[mine], phone[mine])
        if versions:
            rows = rows.append_column("_updated", pa.array(np.arange(1, len(rows) + 1)))
            rows = rows.append_column("_deleted", pa.array(np.zeros(len(rows), np.bool_)))
        write_deltalake(str(folder / name), rows)
    truth.write_text(str(len(sizes)), encoding="utf-8")
    return len(sizes)


def change_rows(rows: pa.Table, count: int, prefix: str, seed: int = 11) -> pa.Table:
    """Return later versions of some rows: of ten, one is deleted, one is new, and two change clusters."""
    rng = np.random.default_rng(seed)
    some = rows.take(rng.choice(len(rows), count, replace=False))
    ids, emails = some.column("_id").to_pylist(), some.column("email").to_pylist()
    other_emails = rows.column("email").take(rng.integers(0, len(rows), count)).to_pylist()
    kind = rng.random(count)
    after = len(rows)
    some = some.set_column(0, "_id", [
        [f"{prefix}{after + index}" if kind[index] < 0.1 else id_ for index, id_ in enumerate(ids)]
    ])  # fmt: skip
    moved = [other_emails[index] if kind[index] < 0.3 else email for index, email in enumerate(emails)]
    some = some.set_column(1, "email", [moved])
    some = some.set_column(4, "city", [_CITIES[rng.integers(0, len(_CITIES), count)]])
    some = some.set_column(
        some.column_names.index("_updated"), "_updated", [np.arange(after, after + count) + 1]
    )
    return some.set_column(some.column_names.index("_deleted"), "_deleted", [kind > 0.9])


def _draw_clusters(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of all clusters, and 1 for those that are chains."""
    parts = [
        (np.ones(int(size * 0.60), np.int64), 0),
        (_draw_until(rng, int(size * 0.25), 2, 4), 0),
        (_draw_until(rng, int(size * 0.10), 10, 50), 1),
        (_draw_until(rng, int(size * 0.05), 100, 5_000), 0),
    ]
    sizes = np.concatenate([part for part, _ in parts])
    kinds = np.concatenate([np.full(len(part), kind) for part, kind in parts])
    return sizes, kinds


def _draw_until(rng: np.random.Generator, total: int, least: int, most: int) -> np.ndarray:
    drawn = rng.integers(least, most + 1, size=total // least + 1)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), total)) + 1]


def _build_rows(rng: np.random.Generator, prefix: str, email: np.ndarray, phone: np.ndarray) -> pa.Table:
    count = len(email)
    return pa.table(
        {
            "_id": [f"{prefix}{number}" for number in range(count)],
            "email": [f"p{number}@example.org" for number in email],
            "phone": [None if number < 0 else f"+47{number:09d}" for number in phone],
            "name": pa.array(_NAMES[rng.integers(0, len(_NAMES), count)]),
            "city": pa.array(_CITIES[rng.integers(0, len(_CITIES), count)]),
            "age": pa.array(rng.integers(0, 99, count), mask=rng.random(count) < 0.1),
        }
    )
