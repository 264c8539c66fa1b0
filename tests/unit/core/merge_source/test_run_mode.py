"""Test how a merge source chooses its run mode from the state of the previous run."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.decisions.merge_source import KEY_STATE, choose_run_mode
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.fingerprint import compute_signature
from airflow_merge_provider.core.source_offset import SourceOffset, write_offsets

CONFIG = MergeSourceConfig.parse({"version": 2, "datasets": ["A a"]})
OFFSET = SourceOffset("/lake/A", 3, "id")


@pytest.mark.parametrize(
    ("state", "mode"),
    [
        ({"evaluated": ["A"]}, "full"),
        ({"evaluated": ["A"], **KEY_STATE}, "noop"),
        ({"evaluated": []}, "noop"),
    ],
    ids=["other keys", "same keys", "keys of Spark"],
)
def test_keys_of_an_earlier_release_are_computed_again(state: dict[str, Any], mode: str) -> None:
    """Stored keys that Python computed in another way are not compared with those of today."""
    previous_state = {"fingerprint": compute_signature(CONFIG), **write_offsets([OFFSET]), **state}

    assert choose_run_mode(CONFIG, previous_state, {"A": OFFSET}, full_refresh=False)[0] == mode
