"""Tests of the merge load configuration: accepted values, and errors that are reported together.

Each error states how to fix it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pandas as pd
import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_load.config import (
    DeleteInsertConfig,
    MergeLoadConfig,
    UpsertConfig,
    compute_signature,
    load_config,
)
from airflow_merge_provider.core.merge_load.scd2 import build_history_shape

BASE = {"source": "s", "target": "t"}
SCD2 = {**BASE, "strategy": "scd2"}
HISTORY = {**SCD2, "natural_key": "id"}


def list_problems(raw: Any) -> Any:
    with pytest.raises(ConfigError) as refused:
        load_config(raw)
    return {problem.path: problem for problem in refused.value.problems}


def test_without_a_strategy_rows_are_replaced() -> None:
    """The default strategy is delete-insert, as in dlt."""
    assert load_config({**BASE, "primary_key": "id"}).strategy == "delete-insert"


def test_an_unknown_strategy_is_refused_with_the_nearest_one() -> None:
    """An unknown strategy is rejected with the nearest known one, before other checks."""
    problems = list_problems({**BASE, "strategy": "scd3"})

    assert problems["strategy"].hint == "did you mean 'scd2'?"


def test_every_problem_is_named_at_once() -> None:
    """Errors of fields and of the rules between them are reported together."""
    raw = {"target": "a b", "strategy": "upsert", "variant": "all", "hard_delete": ["a", "b"], "nope": 1}

    assert set(list_problems(raw)) == {"source", "target", "primary_key", "variant", "hard_delete", "nope"}


@pytest.mark.parametrize("variant", ["upsert", "insert-only", "cdc"])
def test_loads_by_key_need_a_key(variant: Any) -> None:
    """Strategies that match by key require a primary key, because stored rows cannot be found without one."""
    assert list_problems({**BASE, "strategy": "upsert", "variant": variant})["primary_key"].code == "missing"


@pytest.mark.parametrize("name", ["mode", "track", "overwrite", "on_late", "current_column"])
def test_what_is_about_keys_needs_the_key(name: Any) -> None:
    """Arguments that depend on a key are rejected without one, because they would have no effect."""
    values = {"mode": "changes", "on_late": "repair"}

    assert "natural_key" in str(list_problems({**SCD2, name: values.get(name, "c")})[name])


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"merge_key": "id"}, "merge_key"),
        ({"destination_scope": "a = 1"}, "destination_scope"),
        ({"mode": "changes", "scope": ["a"]}, "scope"),
        ({"effective_from": "at"}, "effective_from"),
        ({"effective_from": "2024-01-01", "boundary_timestamp": "2024-01-01"}, "effective_from"),
        ({"sequence_by": "s", "dedup_sort": {"s": "desc"}}, "sequence_by"),
        ({"deleted_column": "gone"}, "deleted_column"),
        ({"on_delete": "mark", "deleted_column": "valid_to"}, "deleted_column"),
        ({"on_delete": "mark", "current_column": "is_deleted"}, "deleted_column"),
        ({"on_late": "repair", "on_delete": "purge"}, "on_late"),
        ({"on_late": "repair", "scope": "d IN (SELECT d FROM {staging_table})"}, "on_late"),
        ({"mode": "changes", "max_close_ratio": 0.1}, "max_close_ratio"),
        ({"on_late": "repair", "on_delete": "ignore"}, "on_late"),
        ({"row_version_column_name": "v", "track": "c"}, "track"),
        ({"surrogate_key_column": "valid_from"}, "surrogate_key_column"),
        ({"current_column": "_row_hash"}, "current_column"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_contradict_each_other_are_refused(raw: Any, path: Any) -> None:
    """Contradicting arguments are rejected; the path is that of the argument that has to change."""
    problems = list_problems({**HISTORY, **raw})

    assert set(problems) == {path}
    assert problems[path].hint


def test_a_boundary_is_a_moment_in_utc() -> None:
    """Dates, texts with and without offset, and seconds are parsed to a timestamp in UTC."""
    forms = ["2024-03-01", date(2024, 3, 1), datetime(2024, 3, 1), "2024-03-01T02:00:00+02:00", 1709251200]  # noqa: DTZ001

    boundaries = {load_config({**SCD2, "boundary_timestamp": form}).boundary_timestamp for form in forms}

    assert boundaries == {datetime(2024, 3, 1, tzinfo=UTC)}


def test_the_time_of_rows_is_a_moment_or_a_column() -> None:
    """A text that is a timestamp is parsed as one; any other text names the column with the times."""
    timestamp_config = load_config({**HISTORY, "effective_from": "2024-03-01"})
    column_config = load_config({**HISTORY, "mode": "changes", "effective_from": "updated_at"})

    assert (timestamp_config.time_given, timestamp_config.time_column) == (
        datetime(2024, 3, 1, tzinfo=UTC),
        None,
    )
    assert (column_config.time_given, column_config.time_column) == (None, "updated_at")


def test_a_check_needs_no_more_than_the_history() -> None:
    """A check needs only the history table: the meaning of its columns is stored in the table."""
    check = load_config({"strategy": "scd2-check", "target": "t"})

    assert check.source is None
    assert "source_filter" in list_problems(
        {"strategy": "scd2-check", "target": "t", "source_filter": "a = 1"}
    )


@pytest.mark.parametrize("option", ["boundary_timestamp", "effective_from", "active_record_timestamp"])
@pytest.mark.parametrize(
    "form",
    [
        "9999-12-31T23:59:59.9999999Z",
        "20240101T000000,1234567",
        "2024-01-01 00:00:00.1234560001+02:00",
        1704067200.1234567,
        pd.Timestamp("2024-01-01T00:00:00.123456789Z"),
    ],
)
def test_digits_below_a_microsecond_are_refused(option: str, form: Any) -> None:
    """They would be cut; a text with them is not the name of a column either."""
    problem = list_problems({**HISTORY, option: form})[option]

    assert "has more than six digits of a second: use microseconds, such as 9999-12-31T23" in problem.message


@pytest.mark.parametrize(
    "form",
    ["2024-01-01T00:00:00.123456000Z", 1704067200.123456, pd.Timestamp("2024-01-01T00:00:00.123456000Z")],
)
def test_zeros_below_a_microsecond_are_accepted(form: Any) -> None:
    """They cut nothing."""
    expected = datetime(2024, 1, 1, microsecond=123456, tzinfo=UTC)

    assert load_config({**SCD2, "boundary_timestamp": form}).boundary_timestamp == expected


@pytest.mark.parametrize("form", ["", "soon", "12:30", True, [], "P1D", 10**30])
def test_what_is_no_moment_is_refused(form: Any) -> None:
    """A text that is not a timestamp is rejected.

    A time without a date would mean another timestamp each day.
    """
    assert (
        "is not a valid timestamp"
        in list_problems({**SCD2, "boundary_timestamp": form})["boundary_timestamp"].message
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({**BASE}, "the load is appended"),
        ({**BASE, "primary_key": "id", "merge_key": "g", "destination_scope": "a = 1"}, "merge_key"),
        ({**BASE, "merge_key": "g", "dedup_sort": {"s": "asc"}}, "dedup_sort"),
        ({**BASE, "primary_key": "id", "deduplicated": True, "dedup_sort": {"s": "asc"}}, "dedup_sort"),
        ({**BASE, "strategy": "upsert", "primary_key": "id", "merge_key": "g"}, "merge_key"),
        ({**SCD2, "hard_delete": "gone"}, "hard_delete"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_probably_not_meant_is_said(raw: Any, message: Any) -> None:
    """A setting without effect is accepted, and the run warns about it."""
    (warning,) = load_config(raw).list_warnings()

    assert message in warning


@pytest.mark.parametrize(
    ("raw", "empty"),
    [
        ({**BASE, "primary_key": "id"}, "skip"),
        ({**BASE, "destination_scope": "a = 1"}, "error"),
        ({**BASE, "strategy": "upsert", "primary_key": "id"}, "skip"),
        ({**BASE, "strategy": "upsert", "primary_key": "id", "variant": "cdc"}, "error"),
        ({**BASE, "strategy": "upsert", "primary_key": "id", "variant": "cdc", "merge_key": "g"}, "skip"),
        (SCD2, "error"),
        ({**SCD2, "merge_key": "g"}, "skip"),
        (HISTORY, "error"),
        ({**HISTORY, "mode": "changes"}, "skip"),
        ({**HISTORY, "scope": ["g"]}, "skip"),
        ({**HISTORY, "on_empty": "apply"}, "apply"),
    ],
    ids=str,
)
def test_a_load_without_rows_is_an_error_where_it_would_delete(raw: Any, empty: Any) -> None:
    """An empty load fails if it would delete rows: an extract that failed silently must not empty a table."""
    assert load_config(raw).empty_load == empty


def test_signatures_tell_loads_apart_and_targets_not() -> None:
    """Signatures differ between loads but not between targets.

    A retry finds its own commit by the signature, in any warehouse location.
    """
    config = load_config({**BASE, "primary_key": "id"})

    assert compute_signature(config) == compute_signature(
        load_config({**BASE, "target": "u", "primary_key": ["id"], "adopt": True})
    )
    for option in ("source_filter", "hard_delete_when"):
        other = load_config({**BASE, "primary_key": "id", option: "a = 1"})
        assert compute_signature(config) != compute_signature(other)


def test_a_shape_holds_what_stored_versions_rest_on() -> None:
    """The shape holds the settings that stored versions depend on, without column order and load time."""
    shape = build_history_shape(
        load_config({**HISTORY, "natural_key": ["a", "b"], "boundary_timestamp": "2024-01-01"})
    )

    assert shape == build_history_shape(load_config({**HISTORY, "natural_key": ["b", "a"]}))
    assert shape != build_history_shape(load_config({**HISTORY, "natural_key": ["b", "a"], "track": "c"}))


def test_the_schema_describes_every_strategy() -> None:
    """The JSON Schema covers every strategy, so that an editor can check a configuration file."""
    schema = MergeLoadConfig.model_json_schema()

    assert {variant["$ref"].rpartition("/")[2] for variant in schema["anyOf"]} == {
        "DeleteInsertConfig", "UpsertConfig", "Scd2Config", "Scd2CheckConfig",
    }  # fmt: skip


def test_the_argument_that_names_a_column_is_found() -> None:
    """The argument that contains a column name is found, although other arguments may have the same text."""
    config = load_config({
        "source": "id", "target": "t", "strategy": "upsert", "primary_key": ["id", "upsert"],
        "dedup_sort": {"at": "desc"}, "hard_delete": "gone",
    })  # fmt: skip

    arguments = {name: config.find_argument(name) for name in ("id", "upsert", "at", "gone", "t")}

    assert arguments == {
        "id": "primary_key", "upsert": "primary_key", "at": "dedup_sort", "gone": "hard_delete", "t": "t"
    }  # fmt: skip


def test_the_time_of_a_run_is_no_change_of_the_configuration() -> None:
    """An operator sets the time of each run, and a run over an unchanged source still does nothing."""
    first, second = (
        load_config({"strategy": "scd2", "source": "s", "target": "t", "boundary_timestamp": time})
        for time in ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z")
    )

    assert first != second
    assert compute_signature(first) == compute_signature(second)


def test_a_later_option_leaves_the_signature_of_targets() -> None:
    """Otherwise a new version of the package would load everything again; an option that is set counts."""

    class LaterConfig(UpsertConfig):
        on_null_key: str = "error"

    raw = {**BASE, "primary_key": "id"}
    plain = compute_signature(UpsertConfig.parse(raw))

    assert compute_signature(LaterConfig.parse(raw)) == plain
    assert compute_signature(LaterConfig.parse({**raw, "on_null_key": "drop"})) != plain
    assert compute_signature(DeleteInsertConfig.parse(raw)) != plain
