"""Seeds of random tests, which are part of the IDs of the tests."""

from __future__ import annotations

import os


def list_seeds(runs: int) -> range:
    """Return the seeds of a random test: ``MERGE_RANDOM_SEED`` and the following ones.

    :param runs: how many by default; ``MERGE_RANDOM_RUNS`` overrides it.
    """
    first = int(os.environ.get("MERGE_RANDOM_SEED", "0"))
    return range(first, first + int(os.environ.get("MERGE_RANDOM_RUNS", runs)))
