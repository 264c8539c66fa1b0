"""Generate the rows of the load benchmarks from seeds: a table of thirteen columns, and its changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

_WORDS = np.array([f"word{number:04d}" for number in range(2000)])


def build_rows(ids: np.ndarray, seed: int) -> pa.Table:
    """Return one row per id: a key, five numbers, four texts, two dates and a flag; 5 % are NULL."""
    random = np.random.default_rng(seed)
    count = len(ids)
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.int64())}
    for number in range(5):
        columns[f"n{number}"] = pa.array(random.random(count).round(6), mask=random.random(count) < 0.05)
    for number in range(4):
        columns[f"t{number}"] = pa.array(_WORDS[random.integers(0, len(_WORDS), count)])
    for number in range(2):
        columns[f"d{number}"] = pa.array(random.integers(10_000, 20_000, count).astype("datetime64[D]"))
    columns["flag"] = pa.array(random.random(count) < 0.5)
    return pa.table(columns)


def change_rows(rows: pa.Table, share: float, seed: int) -> pa.Table:
    """Return the same rows with other values in a share of them."""
    random = np.random.default_rng(seed)
    picked = random.random(len(rows)) < share
    changed_rows = build_rows(rows["id"].to_numpy(), seed)
    return pa.concat_tables([rows.filter(pa.array(~picked)), changed_rows.filter(pa.array(picked))])


def drop_rows(rows: pa.Table, share: float, seed: int) -> pa.Table:
    """Return the rows without a share of them."""
    return rows.filter(pa.array(np.random.default_rng(seed).random(len(rows)) >= share))


def build_batch(stored: int, count: int, seed: int) -> pa.Table:
    """Return rows to load: 90 % have stored ids, spread over all of them, and 10 % are new."""
    random = np.random.default_rng(seed)
    old = random.choice(stored, count - count // 10, replace=False)
    return build_rows(np.concatenate([old, np.arange(stored, stored + count // 10)]), seed)


def write_rows(path: Path, rows: pa.Table, files: int = 8) -> None:
    """Write rows as a Delta table with the given number of files."""
    for start in range(0, len(rows), -(-len(rows) // files)):
        write_deltalake(str(path), rows.slice(start, -(-len(rows) // files)), mode="append")
