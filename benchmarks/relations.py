"""Generate the inputs of the joiner's benchmarks: tables that share 80 % of their keys, and a skewed pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

NAMES = ("a", "b", "c", "d")
SKEWED, SMALL = "events", "kinds"
_OVERLAP = 0.8
_HOT = 0.3


def write_tables(folder: Path, size: int) -> None:
    """Write four tables of ``size`` rows, a skewed one and its partner, once per size."""
    if (folder / "done").exists():
        return
    draw = np.random.Generator(np.random.PCG64(7))
    common = int(size * _OVERLAP)
    for index, name in enumerate(NAMES):
        own_keys = np.arange(size - common) + (index + 1) * 10 * size
        keys = draw.permutation(np.concatenate([np.arange(common), own_keys]))
        _write_table(folder / name, {"k": keys, **_draw_payload(draw, size, name)})
    hot = draw.random(size) < _HOT
    keys = np.where(hot, 0, draw.integers(1, size, size))
    _write_table(folder / SKEWED, {"k": keys, **_draw_payload(draw, size, SKEWED)})
    _write_table(folder / SMALL, {"k": np.arange(size), **_draw_payload(draw, size, SMALL)})
    (folder / "done").touch()


def _draw_payload(draw: np.random.Generator, size: int, name: str) -> dict[str, object]:
    numbers = draw.integers(0, 1_000_000, size)
    return {f"{name}_n": numbers, f"{name}_t": np.char.add(f"{name}-", numbers.astype(str))}


def _write_table(path: Path, columns: dict[str, object]) -> None:
    content = pa.table(columns)
    # Four files, as from several writers.
    step = -(-len(content) // 4)
    for start in range(0, len(content), step):
        write_deltalake(str(path), content.slice(start, step), mode="append")
