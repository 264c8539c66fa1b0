"""Estimates of the size of a file in the output, based on earlier merges of the same writer.

Source: docs/semantics/merge_record.md, Record counts and sizes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.plan import NewFiles
from airflow_merge_provider.core.merge_record.state import State


def estimate_sizes(arrivals: NewFiles, state: State, config: MergeRecordConfig) -> NewFiles:
    """Return new files with the estimated size in bytes of their records in the output.

    Before the first merge, and with another ``size_basis``, the files keep their own size.
    """
    learned = state.learned
    if config.size_basis != "estimated_output" or learned.get("writer") != _hash_writer(config):
        return arrivals
    records, size = learned["records"], learned["bytes"]
    files = (replace(flowfile, bytes=flowfile.records * size // records) for flowfile in arrivals.flowfiles)
    return replace(arrivals, flowfiles=tuple(files))


def learn_size(state: State, config: MergeRecordConfig, records: int, size: int) -> State:
    """Add the bytes and records of a merge to its writer's statistics; another writer starts new ones."""
    if not records:
        return state
    writer = _hash_writer(config)
    previous_sums = state.learned if state.learned.get("writer") == writer else {"records": 0, "bytes": 0}
    sums = {"records": previous_sums["records"] + records, "bytes": previous_sums["bytes"] + size}
    return replace(state, learned={"writer": writer, **sums})


def _hash_writer(config: MergeRecordConfig) -> str:
    return hashlib.sha256(json.dumps(config.output, sort_keys=True).encode()).hexdigest()[:16]
