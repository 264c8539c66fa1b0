"""Made entities with known truth: three datasets of people who share e-mail addresses and phone numbers.

Of all entities 60 % stand alone, 25 % are in groups of 2 to 4, 10 % in chains of 10 to 50, and 5 % in hubs of
up to 5 000. The same arguments give the same bytes.
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


def write(folder: Path, size: int, seed: int = 7) -> int:
    """Write the datasets as Delta tables below ``folder``, once; gives the number of clusters.

    :param size: entities in all datasets together.
    """
    truth = folder / "clusters.txt"
    if truth.exists():
        return int(truth.read_text(encoding="utf-8"))
    shutil.rmtree(folder, ignore_errors=True)
    rng = np.random.default_rng(seed)
    sizes, kinds = _clusters(rng, size)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(cluster)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chained = kinds[cluster] == 1
    # Neighbours in a chain share an address and a number in turns; everybody else shares the address.
    email = np.where(chained, cluster * 100 + place // 2, cluster * 100)
    phone = np.where(chained, cluster * 100 + (place + 1) // 2, -1)
    dataset = (cluster + place) % len(DATASETS)
    for offset, name in enumerate(DATASETS):
        mine = rng.permutation(np.flatnonzero(dataset == offset))
        write_deltalake(str(folder / name), _rows(rng, name.lower(), email[mine], phone[mine]))
    truth.write_text(str(len(sizes)), encoding="utf-8")
    return len(sizes)


def _clusters(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Give the sizes of all clusters, and 1 for those that are chains."""
    parts = [
        (np.ones(int(size * 0.60), np.int64), 0),
        (_until(rng, int(size * 0.25), 2, 4), 0),
        (_until(rng, int(size * 0.10), 10, 50), 1),
        (_until(rng, int(size * 0.05), 100, 5_000), 0),
    ]
    sizes = np.concatenate([part for part, _ in parts])
    kinds = np.concatenate([np.full(len(part), kind) for part, kind in parts])
    return sizes, kinds


def _until(rng: np.random.Generator, total: int, least: int, most: int) -> np.ndarray:
    drawn = rng.integers(least, most + 1, size=total // least + 1)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), total)) + 1]


def _rows(rng: np.random.Generator, prefix: str, email: np.ndarray, phone: np.ndarray) -> pa.Table:
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
