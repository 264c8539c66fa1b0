"""Is this the join of the run before: equal signatures mean that equal inputs give equal rows."""

from __future__ import annotations

import hashlib
import json

from airflow_merge_provider.core.joiner.config import JoinerConfig

# Hints, guards and the inputs' places (which the run compares by version) do not change the rows.
_WITHOUT_EFFECT = frozenset({
    "distribution_enabled",
    "distribution_factor",
    "distribution_stage_name",
    "expect",
    "in_memory_inputs",
    "num_of_inputs",
    "num_partitions",
    "target",
})  # fmt: skip


def signature(config: JoinerConfig) -> str:
    """Give a text that differs when the rows, the columns or the way they are written can."""
    content = config.model_dump(mode="json", exclude=set(_WITHOUT_EFFECT))
    # The order of the inputs is the order of the columns, which sorted keys would lose.
    content["inputs"] = list(config.inputs.items())
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
