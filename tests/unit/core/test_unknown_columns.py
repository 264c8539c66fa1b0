"""Tests that every argument with a column refuses names that no source has, and values that are no name.

The names are checked against the logs of the sources, before Spark starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.core.capabilities import CAPABILITIES, list_key_columns
from airflow_merge_provider.core.errors import ConfigError, DataError, MergeError
from airflow_merge_provider.core.merge_load.config import STRATEGIES
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.landing import list_unknown_names
from airflow_merge_provider.core.merge_record.plan import NewFiles
from airflow_merge_provider.core.merge_record.properties import Period
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.merge_source.columns import check_survivorship_columns
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.model import Config
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
        "label_column": _set("label_column"),
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
        "expect": lambda name: {"expect": {"k": {"not_null": name, "source": "a"}}},
    },
    "merge_engine": {
        "primary_key": _set("primary_key"),
        "row_kind_column": _set("row_kind_column"),
        "order_by": _set("order_by"),
        "partition_by": _set("partition_by"),
        "clear_column": _set("clear_column", merge_engine="partial-update"),
        "options sequence.field": lambda name: {"options": {"sequence.field": name}},
        "options rowkind.field": lambda name: {"options": {"rowkind.field": name}},
        "options aggregate": lambda name: {
            **AGGREGATION,
            "options": {f"fields.{name}.aggregate-function": "sum"},
        },
        "options sequence-group": lambda name: {
            **PARTIAL,
            "options": {f"fields.{name}.sequence-group": "amount"},
        },
        "options sequence-group of": lambda name: {
            **PARTIAL,
            "options": {"fields.amount.sequence-group": name},
        },
        "options delimiter": lambda name: {
            **AGGREGATION,
            "options": {
                f"fields.{name}.aggregate-function": "listagg",
                f"fields.{name}.list-agg-delimiter": ";",
            },
        },
        "options remove-record": lambda name: {
            **PARTIAL,
            "options": {
                "fields.name.sequence-group": "amount",
                "partial-update.remove-record-on-sequence-group": name,
            },
        },
        "options ignore-retract": lambda name: {
            **AGGREGATION,
            "options": {f"fields.{name}.ignore-retract": "true"},
        },
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
# Arguments with names of columns that only Spark checks (tests/jobs/run/test_unknown_columns.py).
WITH_SPARK = {"dispatch_by"}
# A number of seconds is a time.
NO_MISTAKES = {("history", "effective_from", 5)}
# As in pipeline files, an empty text in these properties of a joiner is like none (docs/semantics/joiner.md).
UNSET_BY_EMPTY_TEXT = {
    "fields_to_select", "fields_to_drop", "fields_to_rename", "condition_expression", "output_schema",
}  # fmt: skip
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


def find_models() -> dict[str, type[Config]]:
    """Return the configuration models by capability, those of loads by strategy."""
    models = {job: CAPABILITIES[job].config for job in CAPABILITIES if job != "merge_load"}
    return {**models, **STRATEGIES}


def list_column_arguments() -> list[tuple[str, str]]:
    """Return each argument that names columns of any kind, by capability, the strategies of loads apart."""
    kinds = {**find_models(), "history": STRATEGIES["scd2"]}
    return [
        (kind, name)
        for kind, model in kinds.items()
        for name, mark in model.list_names().items()
        if mark.columns
    ]


@pytest.mark.parametrize(("kind", "argument"), list_column_arguments())
def test_no_argument_takes_a_value_that_is_no_name(kind: str, argument: str) -> None:
    """A boolean, a number and an empty text are refused, alone, in a list and in an object."""
    model = STRATEGIES["scd2"] if kind == "history" else find_models()[kind]
    base = BASES.get(kind, {} if kind == "merge_record" else {"source": "a", "target": "t"})
    model.parse(base)
    shapes = [shape for name in NO_NAMES for shape in (name, [name], {"name": name})]
    accepted: list[Any] = [name for name in NO_NAMES if (kind, argument, name) in NO_MISTAKES]
    if kind == "joiner" and argument in UNSET_BY_EMPTY_TEXT:
        accepted += ["", [""]]

    for value in (*shapes, {"": "name"}):
        if value in accepted:
            continue
        with pytest.raises(ConfigError) as refused:
            model.parse({**base, argument: value})
        assert any(problem.path.startswith(argument) for problem in refused.value.problems), value


def is_open(annotation: Any) -> bool:
    """Return whether values of a type may be texts of any content."""
    if get_origin(annotation) is Annotated:
        return is_open(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(is_open, get_args(annotation)))
    if get_origin(annotation) is Literal:
        return False
    is_type = isinstance(annotation, type) and not get_args(annotation)
    return not (
        is_type and issubclass(annotation, bool | int | float | datetime | timedelta | Period | NoneType)
    )


@pytest.mark.parametrize("model", find_models().values(), ids=find_models())
def test_every_argument_says_whether_it_names_columns(model: type[Config]) -> None:
    """A field that may hold a text has a mark, so that a new one is tested here."""
    marks = model.list_names()

    assert [
        name for name, field in model.model_fields.items() if name not in marks and is_open(field.annotation)
    ] == []


@pytest.mark.parametrize("kind", find_models())
def test_every_argument_that_names_columns_of_sources_has_a_case(kind: str) -> None:
    """A mark of a field requires a case above, one for files below, or one that needs Spark."""
    kinds = [kind, "history"] if kind == "scd2" else [kind]
    # The arguments that all loads share are tested with one of them.
    kinds += [other for other in ("upsert", "delete-insert") if kind in STRATEGIES]
    tested = {argument.split()[0] for name in kinds for argument in NAMED.get(name, {})}
    tested |= WITH_SPARK | ({*FILES, "expect"} if kind == "merge_record" else set())
    marks = find_models()[kind].list_names()

    assert {name for name, mark in marks.items() if mark.columns == "source"} - tested == set()


def test_key_columns_are_those_that_identify_rows() -> None:
    """Marks of fields, and the keys of a join, say which values identify rows."""
    configs: dict[str, dict[str, Any]] = {
        "merge_source": BASES["merge_source"],
        "joiner": {**BASES["joiner"], "join_keys": "a.id = b.name", "key_columns": "k"},
        "merge_engine": {**BASES["merge_engine"], "primary_key": ["id", "name"]},
        "merge_load": {**BASES["scd2"], "strategy": "scd2", "natural_key": "id"},
        "merge_record": {},
        "undo": {"target": "t"},
    }

    keys = {job: list_key_columns(job, config) for job, config in configs.items()}

    assert keys == {
        "merge_source": ("_id", "_id", "$stable_id", "$ids", "$replaced_by"),
        "joiner": ("id", "name", "k"),
        "merge_engine": ("id", "name"),
        "merge_load": ("id",),
        "merge_record": (),
        "undo": (),
    }


FILES: dict[str, dict[str, Any]] = {
    "correlation_attribute_name": {"correlation_attribute_name": MISSPELT},
    "arrival_order": {"arrival_order": f"attribute:{MISSPELT}"},
    "attributes": {"attributes": {"label": f"n-${{{MISSPELT}}}"}},
    "partition_by": {"partition_by": {"part": MISSPELT}},
}


@pytest.mark.parametrize("argument", FILES)
def test_a_misspelt_attribute_of_files_is_warned_of(argument: str) -> None:
    """Files may lack an attribute or a field; if all new files do, the warning names a similar one."""
    schema = Schema(({"name": "name", "type": "string"},))
    file = FlowFile("/in/a", "1", 0, 1, 1, "s", attributes={"name": "x", "filename": "a"})
    arrivals = NewFiles((file,), {"s": schema})

    (warning,) = list_unknown_names(arrivals, MergeRecordConfig.parse(FILES[argument]))

    assert warning.startswith(argument)
    assert MISSPELT in warning
    assert SUGGESTED in warning
    right = json.loads(json.dumps(FILES[argument]).replace(MISSPELT, "name"))
    assert list_unknown_names(arrivals, MergeRecordConfig.parse(right)) == []


def test_nested_fields_and_other_types_of_files_are_found() -> None:
    """A dotted path is that of a nested field; one file that has it suffices, and unreadable ones do not."""
    nested = {"fields": [{"name": "x", "type": ["int", {"fields": [{"name": "y", "type": "int"}]}]}]}
    schemas = {"s": Schema(({"name": "a", "type": nested},)), "t": Schema(({"name": "a.b", "type": "int"},))}
    files = tuple(FlowFile(f"/in/{key}", key, 0, 1, 1, key) for key in schemas)
    paths = {"one": "a.x.y", "two": "a.b", "three": "a.x.z"}

    warnings = list_unknown_names(NewFiles(files, schemas), MergeRecordConfig.parse({"partition_by": paths}))

    assert warnings == ["partition_by.three: no new file has a field 'a.x.z'"]
    assert (
        list_unknown_names(
            NewFiles((replace(files[0], unreadable="no"),), schemas),
            MergeRecordConfig.parse({"partition_by": paths}),
        )
        == []
    )


def test_survivorship_of_a_missing_dataset_is_warned_of() -> None:
    """A property that only a missing dataset may have is no error, but a warning."""
    config = MergeSourceConfig.parse({**BASES["merge_source"], "survivorship": {MISSPELT: "first"}})
    columns = ["_id", "id", "name"]

    (warning,) = check_survivorship_columns(config, {0: columns})

    assert warning == f"survivorship.{MISSPELT}: no dataset has a column '{MISSPELT}' ({SUGGESTED})"
    assert check_survivorship_columns(config, {}) == []
    with pytest.raises(DataError, match=MISSPELT):
        check_survivorship_columns(config, {0: columns, 1: columns})
