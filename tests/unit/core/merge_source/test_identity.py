"""Tests of the IDs of outputs."""

from __future__ import annotations

import itertools

from airflow_merge_provider.core.merge_source.identity import composite_id, first_id


def test_ids_order_by_code_point() -> None:
    """Members are ordered by offset and then by ID in code point order, not by number, locale or UTF-16."""
    ids = ["Z", "z10", "z2", "é", "\ufffd", "\U0001f600"]

    for shuffled in itertools.permutations([(0, id_) for id_ in ids]):
        assert composite_id(shuffled) == "|".join(f"0|{id_}" for id_ in ids)
    assert first_id([(1, "A"), (0, "z2"), (0, "z10")]) == "z10"
