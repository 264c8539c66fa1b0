"""Tests of the MergeRecord configuration and its error messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.config import FileFormat, MergeRecordConfig
from airflow_merge_provider.core.merge_record.properties import (
    data_size,
    from_properties,
    parse_period,
    positive_integer,
)

FOLDERS = {"source": "/in", "merged": "/out", "failure": "/bad", "original": "/old", "state_path": "/state"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("500 B", 500), ("1.5 mb", 1572864), ("0.1 KB", 102), ("1tb", 2**40), (7, 7), ("0 B", 0)],
)
def test_sizes(text: Any, size: Any) -> None:
    """Sizes are powers of 1024, truncated to whole bytes, with units in any case."""
    assert data_size(text) == size


@pytest.mark.parametrize("text", ["1024", "5 KiB", "", "-1 B", "B", ".5 KB", -1, True, None, 1.5, "\uff11 B"])
def test_what_is_no_size(text: Any) -> None:
    """A size text needs its unit; numbers must be whole and not negative."""
    with pytest.raises(ValueError, match="size with a unit"):
        data_size(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("30 secs", 30 * 10**9),
        ("1.5 hours", 5400 * 10**9),
        ("90s", 90 * 10**9),
        ("500 millis", 5 * 10**8),
        ("7 nanos", 7),
        ("2 Wks", 14 * 86400 * 10**9),
        (timedelta(milliseconds=1500), 1500 * 10**6),
    ],
)
def test_periods(text: Any, nanoseconds: Any) -> None:
    """Periods accept short and long units, with and without a space."""
    assert parse_period(text).nanoseconds == nanoseconds


@pytest.mark.parametrize("text", ["30", "", "secs", "1 fortnight", "-1 s", "1..5 s", 30, None])
def test_what_is_no_period(text: Any) -> None:
    """A period without a unit is rejected."""
    with pytest.raises(ValueError, match="unit of time"):
        parse_period(text)


@pytest.mark.parametrize("value", [0, -1, "0", "1.0", " 1", "x", 2**31, "2147483648", True, 1.0, "²"])
def test_what_is_no_positive_integer(value: Any) -> None:
    """An integer outside 32 bits or below one is rejected."""
    with pytest.raises(ValueError, match="integer from 1"):
        positive_integer(value)


def test_every_problem_is_told_at_once() -> None:
    """All errors are reported together, each with the path that the user wrote."""
    with pytest.raises(ConfigError) as refused:
        MergeRecordConfig.parse(
            {
                **FOLDERS,
                "merged": "/in/merged",
                "failure": "lake.crm.failures",
                "min_records": 0,
                "min_bin_size": "2 KB",
                "max_bin_size": "1 KB",
                "max_bin_age": "30",
                "merge_strategy": "Bin-Packing",
                "attribute_strategy": "Keep Some",
                "reader": {"format": "jason"},
                "max_bin": 3,
            }
        )

    problems = {problem.path: str(problem) for problem in refused.value.problems}
    assert set(problems) == {
        "merged", "failure", "min_records", "max_bin_size", "max_bin_age", "attribute_strategy", "reader",
        "max_bin",
    }  # fmt: skip
    assert "did you mean 'max_bins'" in problems["max_bin"]
    assert "did you mean 'json'" in problems["reader"]
    assert "overlap" in problems["merged"]
    assert "catalog table" in problems["failure"]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"min_records": 1001}, "max_records"),
        ({"max_bins": 0}, "max_bins"),
        ({"correlation_attribute_name": ""}, "correlation_attribute_name"),
        ({"reader": {"format": "xml"}}, "reader"),
        ({"reader": {"format": "csv", "schema": ""}}, "reader"),
        ({"reader": {"format": "csv", "header": True}}, "reader"),
        ({"writer": 5}, "writer"),
        ({"arrival_order": "attribute:"}, "arrival_order"),
        ({"attribute_sources": ["meta"]}, "attribute_sources"),
        ({"attributes": {"a": 1}}, "attributes"),
        ({"original": "/old", "original_action": "delete"}, "original"),
        ({"partition_by": {"k": "k"}, "merge_strategy": "Defragment"}, "partition_by"),
        ({"source": " "}, "source"),
        ({"expect": {"x": {"unique": "n"}}}, "expect.x.unique"),
        ({"expect": {"x": {"condition": "n > 0", "on": "changes"}}}, "expect.x.on"),
        ({"expect": {"x": {"condition": "n > 0", "source": "in"}}}, "expect.x.source"),
        ({"expect": {"x": {"not_nul": "n", "condition": "n > 0"}}}, "expect.x.not_nul"),
    ],
)
def test_what_is_refused(settings: Any, path: Any) -> None:
    """One mistake gives one error at its path."""
    with pytest.raises(ConfigError) as refused:
        MergeRecordConfig.parse(settings)

    assert {problem.path for problem in refused.value.problems} == {path}


def test_texts_and_native_values_mean_the_same() -> None:
    """Values in NiFi's notation equal the native Python values."""
    texts = {"min_records": "2", "max_bin_size": "1 KB", "max_bin_age": "90 secs", "max_bins": "unlimited"}
    native = {"min_records": 2, "max_bin_size": 1024, "max_bin_age": timedelta(seconds=90), "max_bins": None}

    assert MergeRecordConfig.parse(texts) == MergeRecordConfig.parse(native)


def test_the_reader_may_be_a_word() -> None:
    """The reader may be the name of a format, without schema and options."""
    config = MergeRecordConfig.parse({"reader": "CSV", "writer": {"format": "jsonl", "options": {"x": True}}})

    assert config.reader == FileFormat("csv", None, {})
    assert config.output == FileFormat("json", None, {"x": "true"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"quoteAll": True},
            "writer: the option quoteAll='true' writes NULL as an empty text (set nullValue",
        ),
        ({"quoteAll": True, "nullValue": "NA"}, None),
        (
            {"Quote": ""},
            "writer: the option quote='' writes values with quotes or separators as others (remove",
        ),
        ({"escape": ""}, "writer: the option escape='' writes values with"),
        ({"quote": "'", "escape": "\\"}, None),
    ],
)
def test_options_with_which_csv_has_other_values_are_refused(options: Any, message: str | None) -> None:
    """The reader has them for files that are written so; its options are those of the writer by default."""
    settings = {"reader": "json", "writer": {"format": "csv", "options": options}}
    if message is None:
        assert MergeRecordConfig.parse(settings).output.format == "csv"
        return
    with pytest.raises(ConfigError) as refused:
        MergeRecordConfig.parse(settings)
    assert message in str(refused.value)
    inherited = {"reader": {"format": "csv", "options": options}}
    if "Quote" in options:
        assert MergeRecordConfig.parse(inherited).output.options == options
    else:
        with pytest.raises(ConfigError, match="reader: the option "):
            MergeRecordConfig.parse(inherited)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_records": 2}, "below the minimums"),
        ({"complete_full_enough": False}, "below a maximum"),
        ({"merge_strategy": "Defragment"}, "incomplete sets"),
        ({"merge_strategy": "Defragment", "correlation_attribute_name": "k"}, "no effect"),
    ],
)
def test_what_is_probably_not_meant_is_told(settings: Any, message: Any) -> None:
    """A bin without any ending condition gives a warning, because it would wait for ever."""
    assert any(message in warning for warning in MergeRecordConfig.parse(settings).list_warnings())
    assert MergeRecordConfig.parse({}).list_warnings() == []


def test_a_flush_leaves_no_bin_open() -> None:
    """`flush` merges every bin, so that none waits without max_bin_age."""
    settings = {"flush": True, "min_records": 2, "complete_full_enough": False}
    assert MergeRecordConfig.parse(settings).list_warnings() == []


def test_properties_of_old_and_new_releases() -> None:
    """Property names before and since NiFi 2.7.0 are equivalent."""
    new = {"Minimum Number of Records": "${least}", "Maximum Number of Bins": "5", "Max Bin Age": None}
    old = {"min-records": "${ least }", "max.bin.count": "5"}

    assert from_properties(new, {"least": "3"}) == from_properties(old, {"least": "3"})
    assert from_properties(new, {"least": "3"}) == {"min_records": "3", "max_bins": "5"}


def test_unknown_properties_and_names_are_refused_together() -> None:
    """Unknown properties and names are reported together with the nearest known name."""
    with pytest.raises(ConfigError) as refused:
        from_properties({"Minimum Number of Record": "1", "Maximum Number of Records": "${most}"})

    first, second = refused.value.problems
    assert first.hint == "did you mean 'Minimum Number of Records'?"
    assert "'most'" in second.message
