"""Test locations with odd names: their spellings, what is refused, and how each client is addressed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.assets import dataset_asset, dataset_text
from airflow_merge_provider.core.dataset import (
    escape_pattern,
    format_table_uri,
    name_dataset,
    parse_hadoop_path,
    parse_location,
    resolve_dataset,
    split_alias,
)
from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.joiner.option_parsing import parse_inputs
from airflow_merge_provider.delta_rs import load_table
from airflow_merge_provider.file_store.folder import open_folder, remove_path
from airflow_merge_provider.hooks.population import get_status
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.triggers.landing import LandingTrigger
from tests.odd_names import ODD, encode_path

NAMES = (
    "a b", "[x]", "{a,b}", "*", "?", "%20", "%2F", "%", "100%", "#", "+", "&", "=", "'", "`", '"', "\\", "~",
    ",", ";", "@", "!", "^", "$", "|", "<x>", "dot.", "\u00e9", "e\u0301", "\u65e5\u672c", "12:30", "a::b",
    "_a/x", ".a/x",
)  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, ODD])
def test_a_name_means_itself_for_every_client(tmp_path: Path, name: str) -> None:
    """A path is literal, its URI is decoded, and each client finds the table and the files there."""
    plain, folder = tmp_path / "plain", tmp_path / "root" / name / "t"
    write_deltalake(str(plain), pa.table({"id": [1], "part": ["p %20[x]"]}), partition_by=["part"])
    shutil.copytree(plain, folder)
    path, uri = str(folder), encode_path(folder)
    asset = dataset_asset(path)

    assert {parse_location(text) for text in (path, uri, f"{path}/", path.replace("/t", "//u/../t"))} == {
        path
    }
    assert parse_hadoop_path(f"file:{path}") == path
    assert asset == dataset_asset(uri)
    assert asset.uri.isascii()
    assert resolve_dataset(dataset_text(asset), None).path == path
    assert name_dataset(path) == name_dataset(uri) == ("file", path)
    assert split_alias(f"{path} t") == (path, "t")
    table = load_table(path)
    assert table.to_pyarrow_dataset().to_table().to_pylist() == [{"id": 1, "part": "p %20[x]"}]
    statuses = get_status(
        WarehouseHook(warehouse=encode_path(folder.parent)),
        ["t", {"dataset": uri, "format": "parquet"}],
    )
    assert [status.origin for status in statuses] == ["rows", "files"]
    remove_path(*open_folder(path))
    assert [entry.name for entry in folder.parent.iterdir()] == []


def test_a_hook_and_a_trigger_use_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    """A connection is tested, and new files are found, wherever the folder is."""
    folder = tmp_path / ODD
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.json").write_text("{}")
    names = ("merged", "failure", "original", "state_path")
    config = {name: parse_location(f"{encode_path(folder)}/{name}") for name in names}
    trigger = LandingTrigger({**config, "source": str(folder / "in"), "reader": "json"})

    assert WarehouseHook(warehouse=encode_path(folder)).test_connection()[0]
    assert not WarehouseHook(warehouse=f"{encode_path(folder)}x").test_connection()[0]
    assert "1" in str(trigger.find_reason())


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://lake/my%20lake/", "s3://lake/my%20lake"),
        ("S3A://lake//a/../b", "s3a://lake/b"),
        ("s3:/lake/a", "s3://lake/a"),
        ("abfss://c@a.dfs.core.windows.net/a#b?c", "abfss://c@a.dfs.core.windows.net/a#b?c"),
        ("gs://lake", "gs://lake"),
        ("hdfs://node:8020/a/", "hdfs://node:8020/a"),
        ("FILE://localhost/a%2520b", "/a%20b"),
        ("file:/a", "/a"),
        ("/", "/"),
    ],
)
def test_a_location_has_one_spelling(text: str, location: str) -> None:
    """The key of an object store is literal, as in Hadoop; the spelling is that of itself."""
    assert parse_location(text) == location == parse_location(location)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file://lake/a", r"names the machine 'lake' \(for a folder of this machine, use file:///lake/a\)"),
        ("file:///100%", r"'%' is not percent-encoded \(write %25 instead of %, or the path without file:\)"),
        ("file:///a#1", r"'#' is not percent-encoded \(write %23"),
        ("file:///a?b", r"'\?' is not percent-encoded \(write %3F"),
        ("file:///%FF", r"has a control character, or is not valid UTF-8 \(rename the folder\)"),
        ("/a\nb", "has a control character"),
        ("/lake/a ", r"begins or ends with a blank \(remove it, or rename the folder\)"),
        (" /lake/a", "begins or ends with a blank"),
        ("file:///lake/a%20", "begins or ends with a blank"),
        ("/12:30/[x]", r"has a colon and '\[', and Hadoop does not support both"),
        ("s3://lake/12:30/*", "has a colon and"),
        ("default.my table", "is not a valid dataset"),
        ("../a", "is not a valid dataset"),
        ("a/b", "is not a valid dataset"),
        ("..", "is not a valid dataset"),
    ],
)
def test_a_location_that_some_client_cannot_use_is_refused(text: str, message: str) -> None:
    """The error names the argument, the location and the remedy."""
    with pytest.raises(ConfigError, match=f"^target: .*{message}"):
        resolve_dataset(text, "/lake", at="target")


@pytest.mark.parametrize("location", ["s3://lake/a#1", "s3://lake/a?b", "s3://lake/\u00e9"])
def test_an_asset_without_a_uri_is_refused(location: str) -> None:
    """Airflow drops fragments and refuses other characters than ASCII."""
    with pytest.raises(ValueError, match="the URI of an Airflow asset cannot hold"):
        dataset_asset(location)


def test_clients_of_object_stores_get_the_key() -> None:
    """delta-rs takes a URI, and Spark's readers of files take brackets as a pattern."""
    assert format_table_uri("s3://lake/a b#1?%20") == "s3://lake/a%20b%231%3F%2520"
    assert format_table_uri("abfss://c@a.net/k=1") == "abfss://c@a.net/k=1"
    assert escape_pattern("s3://lake/[1]") == r"s3://lake/\[1\]"
    with pytest.raises(DataError, match=r"s3://lake/a%20b: delta-rs cannot read .* with %20 in its name"):
        load_table("s3://lake/a%20b")


@pytest.mark.parametrize(
    ("inputs", "parsed"),
    [
        (["/my lake/a one", "b two words"], {"one": "/my lake/a", "two words": "b"}),
        (["/my lake/a"], "has a blank in its location"),
    ],
)
def test_a_location_with_blanks_has_an_alias(inputs: list[str], parsed: Any) -> None:
    """The alias is the last word; a location without one needs an object."""
    if isinstance(parsed, dict):
        assert parse_inputs(inputs) == parsed
        return
    with pytest.raises(ValueError, match=parsed):
        parse_inputs(inputs)
