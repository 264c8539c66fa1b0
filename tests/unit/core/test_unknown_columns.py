"""Tests that every argument with a column refuses names that no source has, and values that are no name.

The names are checked against the logs of the sources, before Spark starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.capabilities import CAPABILITIES
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.merge_load.config import STRATEGIES
from airflow_merge_provider.core.protocol import JobRequest, RunToken

ROWS = {
    "_id": ["1"], "_updated": [1], "_deleted": [False], "id": ["a"], "name": ["x"], "amount": [1],
    "at": pa.array([0], pa.timestamp("us", "UTC")), "flag": [True],
}  # fmt: skip
MISSPELT, SUGGESTED = "naem", "did you mean 'name'?"
NO_NAMES = (True, 5, "")
AGGREGATION = {"merge_engine": "aggregation"}
PARTIAL = {"merge_engine": "partial-update"}
BASES: dict[str, dict[str, Any]] = {
    "merge_source": {"datasets": ["a a", "b b"], "target": "g", "equality": [["eq", "a.id", "b.id"]]},
    "joiner": {"inputs": {"a": "a", "b": "b"}, "join_keys": {"a": "id", "b": "id"}, "target": "j"},
    "merge_engine": {"source": "a", "target": "t", "primary_key": "id"},
    "upsert": {"source": "a", "target": "t", "primary_key": "id"},
    "delete-insert": {"source": "a", "target": "t", "primary_key": "id"},
    "scd2": {"source": "a", "target": "t"},
    "history": {"source": "a", "target": "t", "natural_key": "id", "mode": "changes", "effective_from": "at"},
}
Build = Callable[[Any], dict[str, Any]]


def _set(argument: str, **settings: Any) -> Build:
    return lambda name: {argument: name, **settings}


# Arguments with a name of a column: by capability, the configuration with a given name in it.
NAMED: dict[str, dict[str, Build]] = {
    "merge_source": {
        "id_column": _set("id_column"),
        "deleted_column": _set("deleted_column"),
        "sequence_column": _set("sequence_column"),
        "entity_column": _set("entity_column"),
        "survivorship": lambda name: {"survivorship": {name: "first"}},
        "survivorship group": lambda name: {"survivorship": {"g": {"group": ["at", name]}}},
        "equality": lambda name: {"equality": [["eq", f"a.{name}", "b.id"]]},
        "equality_sets": lambda name: {"equality_sets": [[f"a.{name}", "b.id"]]},
        "expect": lambda name: {"expect": {"k": {"not_null": name, "source": "a"}}},
    },
    "joiner": {
        "join_keys": lambda name: {"join_keys": {"a": name, "b": "id"}},
        "selected_fields": lambda name: {"selected_fields": f"a.id, a.{name}"},
        "fields_to_select": lambda name: {"fields_to_select": f"a.id, a.{name}"},
        "fields_to_drop": lambda name: {"fields_to_drop": f"a.{name}"},
        "fields_to_rename": lambda name: {"fields_to_rename": f"a.{name}:z"},
    },
    "merge_engine": {
        "primary_key": _set("primary_key"),
        "row_kind_column": _set("row_kind_column"),
        "order_by": _set("order_by"),
        "partition_by": _set("partition_by"),
        "clear_column": _set("clear_column", merge_engine="partial-update"),
        "sequence.field": lambda name: {"options": {"sequence.field": name}},
        "rowkind.field": lambda name: {"options": {"rowkind.field": name}},
        "aggregate": lambda name: {**AGGREGATION, "options": {f"fields.{name}.aggregate-function": "sum"}},
        "sequence-group": lambda name: {**PARTIAL, "options": {f"fields.{name}.sequence-group": "amount"}},
        "sequence-group of": lambda name: {**PARTIAL, "options": {"fields.amount.sequence-group": name}},
        "ignore-retract": lambda name: {**AGGREGATION, "options": {f"fields.{name}.ignore-retract": "true"}},
        "expect": lambda name: {"expect": {"k": {"not_null": name}}},
    },
    "upsert": {
        "primary_key": _set("primary_key"),
        "merge_key": _set("merge_key", variant="cdc"),
        "hard_delete": _set("hard_delete"),
        "dedup_sort": lambda name: {"dedup_sort": {name: "desc"}},
        "row_version_column_name": _set("row_version_column_name"),
        "sequence_by": _set("sequence_by"),
        "expect": lambda name: {"expect": {"k": {"unique": name}}},
    },
    "delete-insert": {
        "primary_key": _set("primary_key"),
        "merge_key": _set("merge_key"),
        "hard_delete": _set("hard_delete"),
        "dedup_sort": lambda name: {"dedup_sort": {name: "desc"}},
        "expect accepted_values": lambda name: {"expect": {"k": {"accepted_values": {name: ["x"]}}}},
        "expect foreign_key": lambda name: {
            "expect": {"k": {"foreign_key": {"columns": name, "dataset": "b", "references": "id"}}}
        },
        "expect freshness": lambda name: {
            "expect": {"k": {"freshness": {"column": name, "max_age": "1 day"}}}
        },
    },
    "scd2": {
        "natural_key": _set("natural_key"),
        "merge_key": _set("merge_key"),
        "row_version_column_name": _set("row_version_column_name"),
        "hard_delete": _set("hard_delete"),
        "dedup_sort": lambda name: {"natural_key": "id", "dedup_sort": {name: "desc"}},
    },
    "history": {
        "effective_from": _set("effective_from"),
        "track": _set("track"),
        "track_except": _set("track_except"),
        "overwrite": _set("overwrite"),
        "scope": lambda name: {"mode": "snapshot", "effective_from": None, "scope": [name]},
    },
}
# Arguments whose names of columns are those of the output, of SQL that only Spark reads, or none.
OTHERS = {
    "merge_source": """type version datasets identity strategy max_merged initial_datasets metrics values
        comment reset ignore_non_existent_datasets supports_signalling include_internal_properties
        if_source_empty require_populated_input supports_since is_since_comparable
        is_chronological target equality_sets_mode on_config_change change_detection
        schema_evolution max_key_fanout on_over_merge stable_id replaced_by overrides""",
    "joiner": """inputs target target_format write_mode join_type num_of_inputs required_inputs
        join_null_keys in_memory_inputs condition_type condition_expression input_aliases
        distribution_enabled distribution_factor distribution_stage_name num_partitions
        output_schema indicator key_columns unmatched expect""",
    "merge_engine": """source target merge_engine options tombstone_retention compact_ratio batch_id changelog
        fail_on incremental""",
    "merge_load": """source target source_filter hard_delete_when on_empty nested schema_evolution adopt
        strategy deduplicated destination_scope on_no_keys variant skip_unchanged_rows
        boundary_timestamp dispatch_by active_record_timestamp validity_column_names mode
        on_delete current_column deleted_column expect surrogate_key_column on_late
        max_close_ratio""",
}
# A number of seconds is a time.
NO_MISTAKES = {("history", "effective_from", 5)}
CASES = [(kind, argument) for kind, builders in NAMED.items() for argument in builders]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a warehouse with two tables of the same columns."""
    folder = tmp_path_factory.mktemp("lake")
    for name in ("a", "b"):
        write_deltalake(folder / name, pa.table(ROWS))
    return folder


def find_error(kind: str, argument: str, name: Any, folder: Path) -> str:
    """Return the error of a run with a value as a name of a column."""
    job = kind if kind in CAPABILITIES else "merge_load"
    strategy = "scd2" if kind == "history" else kind
    config = {**BASES[kind], **NAMED[kind][argument](name), **({"strategy": strategy} if job != kind else {})}
    token = RunToken(dag_id="d", run_id="r", task_id="t")
    request = JobRequest(job=job, config=config, run=token, warehouse=str(folder), started_at=7)
    with pytest.raises(MergeError) as refused:
        find_result(request, conf={}, is_local=True, on_line=str)
    return str(refused.value)


@pytest.mark.parametrize(("kind", "argument"), CASES)
def test_a_misspelt_column_is_refused(kind: str, argument: str, folder: Path) -> None:
    """The error names the argument, the column and a similar one."""
    error = find_error(kind, argument, MISSPELT, folder)

    assert MISSPELT in error
    assert SUGGESTED in error or "columns: _id, _updated" in error, error


@pytest.mark.parametrize(
    ("kind", "argument", "name"),
    [(*case, name) for case in CASES for name in NO_NAMES if (*case, name) not in NO_MISTAKES],
)
def test_a_value_that_is_no_name_is_refused(kind: str, argument: str, name: Any, folder: Path) -> None:
    """A boolean, a number and an empty text are not names of columns."""
    assert find_error(kind, argument, name, folder)


def _list_fields() -> Iterator[tuple[str, str]]:
    for job in ("merge_source", "joiner", "merge_engine"):
        yield from ((job, name) for name in CAPABILITIES[job].config.model_fields)
    for model in STRATEGIES.values():
        yield from (("merge_load", name) for name in model.model_fields)


def test_every_argument_is_known_here() -> None:
    """A new argument is one of those that name columns, or of the others."""
    loads = {argument.split()[0] for kind in NAMED if kind not in CAPABILITIES for argument in NAMED[kind]}
    named = {kind: {argument.split()[0] for argument in NAMED[kind]} for kind in NAMED} | {
        "merge_load": loads
    }

    unknown = [(job, name) for job, name in _list_fields() if name not in {*named[job], *OTHERS[job].split()}]

    assert unknown == []
