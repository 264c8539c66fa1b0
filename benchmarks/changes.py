"""Build a table of states and batches of changes to it: keys across the whole table, some repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

VALUES = [f"n{number}" for number in range(7)]
TEXTS = [f"t{number}" for number in range(4)]
COLUMNS = ["k", "seq", *VALUES, *TEXTS]
_FILES = 8
_PER_KEY = 1.2
_WITH_NEW_KEYS = 1.11
_SEED = 20_240_501


def build_states(size: int) -> pa.Table:
    """Return one row for each of the keys 0 to ``size`` - 1."""
    return _build_rows(np.arange(size), np.zeros(size, dtype=np.int64), np.random.default_rng(_SEED), 0.0)


def build_batch(size: int, changes: int, number: int) -> pa.Table:
    """Return the raw changes of a batch: 1.2 per key, half of the values NULL, increasing sequences.

    A tenth of the keys is new to the table, except those added by earlier batches.
    """
    draw = np.random.default_rng([_SEED, number])
    keys = draw.integers(0, int(size * _WITH_NEW_KEYS), int(changes / _PER_KEY))
    chosen = draw.choice(keys, changes)
    sequence = number * changes + draw.permutation(changes) + 1
    return _build_rows(chosen, sequence, draw, 0.5)


def _build_rows(keys: np.ndarray, sequence: np.ndarray, draw: np.random.Generator, nulls: float) -> pa.Table:
    columns = {"k": pa.array(keys), "seq": pa.array(sequence)}
    for name in VALUES:
        empty = draw.random(len(keys)) < nulls
        columns[name] = pa.array(draw.integers(0, 1_000, len(keys)), mask=empty)
    for name in TEXTS:
        empty = draw.random(len(keys)) < nulls
        texts = np.char.add("text ", draw.integers(0, 100_000, len(keys)).astype(str))
        columns[name] = pa.array(texts, pa.string(), mask=empty)
    return pa.table(columns)


def write_table(path: Path, rows: pa.Table) -> None:
    """Write a table of several files with deletion vectors enabled."""
    per_file = -(-len(rows) // _FILES)
    for start in range(0, len(rows), per_file):
        write_deltalake(str(path), rows.slice(start, per_file), mode="append")
