"""Tests of the options of readers of files: those that lose something in silence are refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_merge_provider.core.dataset import FILE_FORMATS, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.file_options import (
    DATASET,
    INFERRING,
    MERGE_RECORD,
    PASSED_OPTIONS,
    REFUSED_OPTIONS,
    find_lossy_options,
    find_option_problems,
)
from airflow_merge_provider.core.merge_record.config import FORMATS, MergeRecordConfig

LOSSY: dict[str, dict[str, Any]] = {
    "csv": {"mode": "FAILFAST ", "unescapedQuoteHandling": "SKIP_VALUE", "samplingRatio": "0.99"},
    "json": {"dropFieldIfAllNull": True, "singleVariantColumn": "v", "ignoreCorruptFiles": "TRUE"},
    "xml": {
        "mode": "dropMalformed",
        "excludeAttribute": "true",
        "rowTag": "r",
        "ENABLEDATETIMEPARSINGFALLBACK": "true",
    },
    "parquet": {"mergeSchema": "false", "ignoreMissingFiles": True},
    "avro": {"ignoreExtension": "false", "positionalFieldMatching": "true", "recursiveFieldMaxDepth": "3"},
}
OWN = {"pathGlobFilter": "*.csv", "modifiedAfter": "2024-01-01", "recursiveFileLookup": "false",
       "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "v"}  # fmt: skip


def refuse_dataset(kind: str, options: dict[str, Any]) -> list[str]:
    """Return the texts of the problems of a dataset."""
    with pytest.raises(ConfigError) as refused:
        resolve_dataset({"dataset": "/f", "format": kind, "options": options}, None, at="source")
    return [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize("kind", LOSSY)
def test_options_that_lose_something_are_refused(kind: str) -> None:
    """Each is named with its value and the remedy, for datasets and for merge record."""
    options = {name: option for name, option in LOSSY[kind].items() if name != "rowTag"}

    texts = refuse_dataset(kind, LOSSY[kind])
    with pytest.raises(ConfigError) as refused:
        MergeRecordConfig.parse({"reader": {"format": kind, "schema": "v STRING", "options": LOSSY[kind]}})

    assert len(texts) == len(refused.value.problems) == len(options)
    for name in options:
        pattern = rf"(?i)\Asource: the option {name}='.+' \w+ .* \(.+\)\Z"
        assert [text for text in texts if re.match(pattern, text)], texts
        pattern = rf"(?i)\Areader: the option {name}='.+' \w+ .* \(.+\)\Z"
        assert [problem for problem in refused.value.problems if re.match(pattern, str(problem))]


def test_merge_record_chooses_its_files_itself() -> None:
    """There, options that choose files or records are refused, which a dataset may have."""
    with pytest.raises(ConfigError) as refused:
        MergeRecordConfig.parse({"reader": {"format": "csv", "options": OWN}})

    assert len(refused.value.problems) == len(OWN)
    assert resolve_dataset({"dataset": "/f", "format": "csv", "options": OWN}, None).options == OWN


@pytest.mark.parametrize("kind", FILE_FORMATS)
def test_values_that_lose_nothing_are_passed_on(kind: str) -> None:
    """Spark's defaults of these options are accepted, and so are settings of Hadoop."""
    options = {
        "MODE": "FailFast", "samplingRatio": "1.0", "mergeSchema": True, "ignoreExtension": "true",
        "excludeAttribute": False, "ignoreCorruptFiles": "false", "unescapedQuoteHandling": "RAISE_ERROR",
        "recursiveFieldMaxDepth": "-1", "fs.s3a.endpoint": "x", "rowTag": "r",
    }  # fmt: skip

    assert resolve_dataset({"dataset": "/f", "format": kind, "options": options}, None).format == kind


def test_text_is_utf8() -> None:
    """Spark copies the bytes of text files whatever their encoding, which has two names."""
    pattern = r"source: the option encoding='latin-1' has no effect .* \(write the files in UTF-8\)"
    assert re.fullmatch(pattern, *refuse_dataset("text", {"charset": "latin-1"}))
    options = {"encoding": "utf-8"}
    assert resolve_dataset({"dataset": "/f", "format": "text", "options": options}, None).options == options


def test_an_option_with_none_is_left_out() -> None:
    """PySpark's readers do the same."""
    options = {"nullValue": None, "header": True}
    config = MergeRecordConfig.parse({"reader": {"format": "csv", "options": options}})

    assert config.reader.options == {"header": "true"}
    dataset = resolve_dataset({"dataset": "/f", "format": "csv", "options": options}, None)
    assert dataset.options == {"header": "true"}


def test_options_of_spark_are_known() -> None:
    """These options are in no page of Spark's documentation."""
    json_options = {"maxStringLen": "9", "maxNumLen": "9", "maxNestingDepth": "9"}
    assert not [*find_option_problems("json", json_options, "source")]
    assert not [*find_option_problems("xml", {"useLegacyXMLParser": "true", "rowTag": "r"}, "source")]


def test_options_without_effect_are_refused() -> None:
    """Without a schema, merge record finds the types of JSON by its own parser, which has no options."""
    options = {"multiLine": "true", "ALLOWCOMMENTS": "true", "lineSep": "|", "primitivesAsString": "true"}
    problems = [str(problem) for problem in find_lossy_options("json", options, "reader", INFERRING)]
    assert len(problems) == len(options)
    assert problems[0] == (
        "reader: the option multiLine='true' has no effect on the types that are found "
        "(set the format json-array, or a schema of the reader)"
    )
    assert not [*find_lossy_options("json-array", {"multiLine": "true"}, "reader", INFERRING)]
    assert not [*find_lossy_options("json", options, "reader", MERGE_RECORD)]


def test_an_unknown_option_is_refused() -> None:
    """Spark would ignore it, and one of two spellings of an option."""
    assert refuse_dataset("csv", {"delimeter": ";"}) == [
        "source: unknown option 'delimeter', which Spark would ignore (did you mean 'delimiter'?)"
    ]
    assert refuse_dataset("csv", {"sep": ";", "Delimiter": "|"}) == [
        "source: 'sep' and 'Delimiter' are one option, of which Spark would use one (remove one of them)"
    ]


def test_each_option_has_one_decision() -> None:
    """An option is refused or passed on by the readers of a format, and not both."""
    passed = {(name.lower(), kind) for kind, names in PASSED_OPTIONS.items() for name in names}
    for option in REFUSED_OPTIONS:
        assert set(option.formats) <= {*FILE_FORMATS, *FORMATS}
        if option.readers == (DATASET, MERGE_RECORD):
            assert not passed & {(option.name.lower(), kind) for kind in ("all", *option.formats)}
    for kind in FORMATS:
        names = {name: "true" for group in PASSED_OPTIONS.values() for name in group}
        del names["delimiter"], names["charset"]
        assert not [*find_option_problems(kind, names, "source")]
