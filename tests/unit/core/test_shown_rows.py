"""Tests of what logs, reports and errors may show of rows."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from airflow_merge_provider.core.change_plan.shown_rows import (
    ShownRows,
    mask_change,
    mask_error,
    mask_problem,
    mask_row,
    mask_text,
    mask_trace,
    mask_value,
    use_shown_rows,
)
from airflow_merge_provider.core.change_plan.summary import ChangeSummary
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_engine.refusals import build_error
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.hooks.spark_job import choose_shown_rows

KEYS = ShownRows(rows="keys", key_columns=("id",))
ROW = {"ID": 1, "mail": "x", "gone": None}
TRACE = """Traceback (most recent call last):
  File "/a/b.py", line 7, in run
    raise ValueError(text)
ValueError: the value planted
planted in a second line
Caused by: org.apache.spark.SparkException: planted
	at org.apache.spark.Task.run(Task.scala:3)
	... 3 more
  at planted, a line of a value
"""


def test_everything_is_shown_by_default() -> None:
    """Requests of the command line show whole rows."""
    assert mask_row(ROW) == ROW
    assert mask_change(ROW, {**ROW, "mail": "y"})[1] == {**ROW, "mail": "y"}
    assert [mask_text("x"), mask_error("[A] x"), mask_error("x", ValueError()), mask_trace(TRACE)] == [
        "x", "[A] x", "x", TRACE,
    ]  # fmt: skip


def test_a_masked_value_has_changed_if_its_text_has() -> None:
    """NaN is equal to itself here, and -0.0 is not 0.0."""
    nan, zero = float("nan"), 0.0
    with use_shown_rows(KEYS):
        after = mask_change({"id": 1, "a": nan, "b": zero}, {"id": 1, "a": float("nan"), "b": -zero})[1]
    assert after == {"id": 1, "a": "***", "b": "*** (changed)"}


@pytest.mark.parametrize(
    ("shown", "row"),
    [
        (KEYS, {"ID": 1, "mail": "***", "gone": None}),
        (ShownRows(rows="none", key_columns=("id",)), {"ID": "***", "mail": "***", "gone": None}),
        (ShownRows(masked_columns=("Mail",)), {"ID": 1, "mail": "***", "gone": None}),
        (KEYS.model_copy(update={"masked_columns": ("id",)}), {"ID": "***", "mail": "***", "gone": None}),
    ],
)
def test_a_row_has_the_columns_that_may_be_shown(shown: ShownRows, row: dict[str, Any]) -> None:
    """Names and NULLs stay, and the case of names is ignored."""
    with use_shown_rows(shown):
        assert mask_row(ROW) == row
        assert mask_value("x", ["mail"]) == "***"
        assert mask_value("x", []) == "x"
    assert mask_row(ROW) == ROW


def test_masked_columns_are_masked_in_nested_values() -> None:
    """A field of a struct, also in a list or a map, is masked as a column is."""
    row = {"person": {"mail": "x", "age": 3, "homes": [{"mail": "y", "n": 1}, {"mail": None}]}}

    with use_shown_rows(ShownRows(masked_columns=("mail",))):
        masked = mask_row(row)

    assert masked == {"person": {"mail": "***", "age": 3, "homes": [{"mail": "***", "n": 1}, {"mail": None}]}}


def test_a_plan_says_which_masked_columns_change() -> None:
    """An updated row shows that values differ; the reason may have a value, the counts have none."""
    rows = [({"id": 1, "a": 1, "b": 2}, {"id": 1, "a": 1, "b": 3, "c": 4}), (None, {"id": 2, "a": 1})]
    examples = [
        {"kind": "updated", "reason": "content", "detail": "planted", "before": before, "after": after}
        for before, after in rows
    ]
    plan = ChangeSummary.model_validate(
        {"kinds": {"updated": 2}, "reasons": {}, "examples": examples, "digest": "d"}
    )

    with use_shown_rows(KEYS):
        first, second = plan.mask_rows().examples

    assert first.before == {"id": 1, "a": "***", "b": "***"}
    assert first.after == {"id": 1, "a": "***", "b": "*** (changed)", "c": "***"}
    assert [name for name, *_ in first.list_changed_columns()] == ["b", "c"]
    assert (second.before, second.after) == (None, {"id": 2, "a": "***"})
    assert (first.detail, first.reason) == ("***", "content")


def test_errors_and_traces_have_no_messages() -> None:
    """An error keeps its condition or class, a trace its files and functions."""
    with use_shown_rows(KEYS):
        assert mask_error("[CAST_INVALID_INPUT] The value 'x'") == "[CAST_INVALID_INPUT] ***"
        assert mask_error("planted") == "***"
        trace = mask_trace(TRACE)
    assert "planted" not in trace
    assert trace.splitlines() == [
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 7, in run',
        "ValueError: ***",
        "Caused by: org.apache.spark.SparkException: ***",
        "\tat org.apache.spark.Task.run(Task.scala:3)",
        "\t... 3 more",
    ]


@pytest.mark.parametrize(
    ("text", "error", "shown"),
    [
        ("java.lang.NumberFormatException: planted", None, "java.lang.NumberFormatException: ***"),
        ("java.io.UncheckedIOException: x.JsonError: planted", None, "java.io.UncheckedIOException: ***"),
        ("(java.lang.RuntimeException) planted", None, "java.lang.RuntimeException: ***"),
        ("x.SparkException: [A.B] planted", None, "x.SparkException: [A.B] ***"),
        ("java.net.ConnectException: planted: Connection refused", None, None),
        (
            "java.io.FileNotFoundException: no 'it's planted' here",
            None,
            "java.io.FileNotFoundException: no '***' here",
        ),
        ("ExecutorLostFailure (executor 3 exited) Reason: out of memory", None, None),
        ("CSV parse error: planted,1", ValueError(), "ValueError: ***"),
        ("[Errno 2] No such file: 'planted'", FileNotFoundError(), "[Errno 2] No such file: '***'"),
        ('unbalanced "planted', OSError(), 'unbalanced "***"'),
        ("Expecting value: line 1", json.JSONDecodeError("", "", 0), None),
    ],
)
def test_the_class_of_an_error_decides_what_is_shown(
    text: str, error: Exception | None, shown: str | None
) -> None:
    """Errors of files and networks keep their text without quotes, all others only their class."""
    with use_shown_rows(KEYS):
        assert mask_error(text, error) == (shown or text)


NESTED = ShownRows(masked_columns=("address.email", "iban"))


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("x", ["address.email"], "***"),
        ("x", ["person.Address.Email"], "***"),
        ("x", ["iban.country"], "***"),
        ("x", ["email"], "x"),
        ('{"email": "x", "n": 1}', ["address"], '{"email": "***", "n": 1}'),
        ('{"address": {"email": "x"}, "id": 1}', ["address", "id"], '{"address": {"email": "***"}, "id": 1}'),
        ('{"id": 1.50}', ["id"], '{"id": 1.50}'),
        ('{"email": NULL}', ["address"], "***"),
    ],
)
def test_masked_fields_have_paths(text: str, columns: list[str], shown: str) -> None:
    """A name with dots masks the fields with this path, also in texts of nested values."""
    with use_shown_rows(NESTED):
        assert mask_value(text, columns) == shown
        assert mask_row({"address": {"email": "x"}, "list": [{"iban": 1}], "json": '{"iban": 1}'}) == {
            "address": {"email": "***"},
            "list": [{"iban": "***"}],
            "json": '{"iban": 1}',
        }


def test_names_of_masked_columns_may_have_any_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """In backticks, a part of a name is literal: dots, commas and brackets belong to it."""
    text = "`Salary [EUR]`, `Tel.`, person.`a,b`, first name"
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_ROWS", "all")
    monkeypatch.setenv("AIRFLOW__MERGE__MASK_COLUMNS", text)

    shown_rows = choose({})

    assert shown_rows.masked_columns == ("Salary [EUR]", "Tel.", "person.a,b", "first name")
    with use_shown_rows(shown_rows):
        row = {"Salary [EUR]": 1, "Tel.": 2, "Tel": 3, "person": {"a,b": 4, "a": 5}}
        assert mask_row(row) == {
            "Salary [EUR]": "***",
            "Tel.": "***",
            "Tel": 3,
            "person": {"a,b": "***", "a": 5},
        }


@pytest.mark.parametrize(
    "text",
    [
        "the row kind must be +I, +U, -U or -D, not 'planted'",
        "clear_column must list only columns that skip NULLs, not planted, planted",
        "overflow: sum of column 'n' is planted, out of range for int",
        "product of column 'n' cannot retract planted from planted: the quotient is not a finite decimal",
    ],
)
def test_messages_of_executors_are_masked_by_the_driver(text: str) -> None:
    """Executors do not know the settings, so the driver takes values out of their messages."""
    with use_shown_rows(KEYS):
        error = str(build_error([(text, 1, "***")]))

    assert "planted" not in error
    assert "***" in error
    assert "planted" in str(build_error([(text, 1, "k")]))


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ("a record has the field 'v' more than once (write one)", None),
        (
            "field 'v.x': the DOUBLE 'planted' is not an INT (set it)",
            "field 'v.x': the DOUBLE '***' is not an INT (set it)",
        ),
        (
            "column 'v': 'planted' is none, such as in '{\"v\": \"it's\"}' (set it)",
            "column 'v': '***' (set it)",
        ),
        ("such as 'field 'planted'' (correct it)", "such as '***' (correct it)"),
    ],
)
def test_problems_keep_their_column_and_their_remedy(problem: str, shown: str | None) -> None:
    """Only what they quote is masked, which may have quotes."""
    with use_shown_rows(KEYS):
        assert mask_problem(problem) == (shown or problem)


def test_all_threads_of_a_run_mask() -> None:
    """Threads that a run starts show no more than the run."""
    texts: list[str] = []
    with use_shown_rows(KEYS):
        thread = threading.Thread(target=lambda: texts.append(mask_text("planted")))
        thread.start()
        thread.join()

    assert texts == ["***"]


def choose(config: dict[str, Any], job: Any = "merge_load") -> ShownRows:
    token = RunToken(dag_id="d", run_id="r", task_id="t")
    return choose_shown_rows(JobRequest(job=job, config=config, run=token, started_at=1))


def test_settings_of_airflow_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are shown by default; a key with a masked column is masked as a whole."""
    load = {"strategy": "upsert", "source": "s", "target": "t", "primary_key": ["id", "mail"]}
    persons = {"datasets": ["a a"], "target": "t", "id_column": "Mail"}

    assert choose(load) == ShownRows(rows="keys", key_columns=("id", "mail"))
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_ROWS", " All ")
    monkeypatch.setenv("AIRFLOW__MERGE__MASK_COLUMNS", "mail,, iban")

    assert choose(load).masked_columns == ("mail", "iban", "id")
    assert choose(persons, "merge_source").masked_columns == (
        "mail",
        "iban",
        "Mail",
        "_id",
        "$stable_id",
        "$ids",
        "$replaced_by",
    )
    assert choose({"target": "t"}, "undo") == ShownRows(masked_columns=("mail", "iban"))


@pytest.mark.parametrize("column", ["address", "a.iban"])
def test_a_key_with_a_masked_field_is_masked(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of keys contain the values of all of their fields."""
    monkeypatch.setenv("AIRFLOW__MERGE__MASK_COLUMNS", "address.email, iban")
    load = {"strategy": "upsert", "source": "s", "target": "t", "primary_key": [column]}

    assert choose(load).masked_columns == ("address.email", "iban", column)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SHOW_ROWS", "key", r"show_rows: must be .* \(did you mean 'keys'\?\)"),
        (
            "MASK_COLUMNS",
            "a, 'email'",
            r"""mask_columns: "'email'" is not the name of a column \(write names """,
        ),
        (
            "MASK_COLUMNS",
            "email; iban",
            r"mask_columns: 'email; iban' is not .*, separated by commas: email, ",
        ),
        ("MASK_COLUMNS", '["email", "iban"]', r"mask_columns: .* without quotes, brackets or semicolons, "),
        ("MASK_COLUMNS", "`email", "mask_columns: '`email' is not the name"),
        ("MASK_COLUMNS", "email\niban", "mask_columns: 'email.niban' is not the name"),
        ("MASK_COLUMNS", "address.", "mask_columns: 'address.' is not the name"),
    ],
)
def test_a_misspelt_setting_is_refused(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong value never shows more than was meant."""
    monkeypatch.setenv(f"AIRFLOW__MERGE__{name}", value)

    with pytest.raises(ConfigError, match=rf"\[merge\] {message}"):
        choose({})
