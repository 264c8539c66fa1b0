"""Test that a merge source links values of each type exactly, and explains the links."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, StringType

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.explain.merge_source import list_all_links
from airflow_merge_provider.jobs.merge_source.scan.sources import SCAN_ID, open_source
from tests.jobs.merge_source.pipe import Pipe
from tests.values.catalog import ALL, SHORT, SIMPLE, Kind
from tests.values.merging import BY_NAME, build_sparse, fold_value, list_cells, mark_long, require_exact
from tests.values.outcomes import read_outcomes

pytestmark = pytest.mark.spark
OUTCOMES = read_outcomes("merge_source")
# Of each type, this many values are compared.
VALUES_MAX = 8


def list_match_keys(value: Any, kind: Kind) -> set[str]:
    """Return the texts by which a value links: those of its items, if it is a list; NaN links nothing."""
    items = value if kind.name.startswith("array_") else [value]
    return {fold_value(_drop_missing(item)) for item in items if item is not None and not _has_nan(item)}


def _drop_missing(value: Any) -> Any:
    """Return a value without the NULL fields of structs, which are absent properties."""
    if isinstance(value, Mapping):
        return {name: _drop_missing(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_drop_missing(item) for item in value]
    return (value[0], _drop_missing(value[1])) if isinstance(value, tuple) else value


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    if isinstance(value, tuple):
        return _has_nan(value[1])
    return isinstance(value, list) and any(map(_has_nan, value))


def list_groups(kind: Kind) -> list[list[int]]:
    """Return the positions of the values of a type that are linked to each other, by their keys."""
    groups: list[tuple[set[str], list[int]]] = []
    for position, value in enumerate(kind.values[:VALUES_MAX]):
        keys = list_match_keys(value, kind)
        linked = [group for group in groups if group[0] & keys]
        groups = [group for group in groups if group not in linked]
        keys = keys.union(*(group[0] for group in linked))
        groups.append((keys, sorted([position, *(at for _, members in linked for at in members)])))
    # A value without a key is alone, on both sides.
    return sorted(members for keys, members in groups if keys)


@dataclass(frozen=True)
class Compared:
    """The outputs of two datasets with the same values: the positions of linked values, and the links."""

    groups: dict[str, list[list[int]]]
    links: dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def compare(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compared]:
    """Return the links between the values of a type, from a run with those of ``SHORT`` or with the rest."""

    @cache
    def compare_kinds(*, is_short: bool) -> Compared:
        kinds = [kind for kind in ALL if (kind in SHORT) == is_short]
        return _compare_kinds(spark, tmp_path_factory.mktemp("compared"), kinds)

    return lambda name: compare_kinds(is_short=BY_NAME[name] in SHORT)


def _compare_kinds(spark: SparkSession, folder: Path, kinds: Sequence[Kind]) -> Compared:
    """Return the links between two datasets with the values of each type, by a rule for each type."""
    rules = [["eq", f"a.{kind.name}", f"b.{kind.name}"] for kind in kinds]
    pipe = Pipe(spark, folder, datasets=["A a", "B b"], equality=rules, values="columns")
    for name in "AB":
        cells = [
            (f"{name}-{kind.name}-{at}", kind, value)
            for kind in kinds
            for at, value in enumerate(kind.values[:VALUES_MAX])
        ]
        pipe.write_rows(name, build_sparse(cells))
    pipe.run_job()
    groups: defaultdict[str, list[list[int]]] = defaultdict(list)
    for ids in pipe.target_rows().select("$ids").toArrow()["$ids"].to_pylist():
        parts = [id_.split("-") for id_ in ids]
        (name,) = {part[1] for part in parts}
        sides = [sorted(int(part[2]) for part in parts if part[0] == side) for side in "AB"]
        if len(ids) > 1:
            assert sides[0] == sides[1]
            groups[name].append(sides[0])
    links: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for link in list_all_links(str(pipe.target.name), warehouse=str(folder)):
        links[link["rule"].partition(" ")[0].removeprefix("a.")].append(link)
    return Compared({name: sorted(actual) for name, actual in groups.items()}, dict(links))


@pytest.mark.parametrize(("name", "use"), mark_long(list_cells(OUTCOMES, ALL, "compared", "explain")))
def test_values_are_linked_if_they_are_equal(compare: Callable[[str], Compared], name: str, use: str) -> None:
    """Each value links its equal in the other dataset, neighbours stay apart, and links show the values."""
    require_exact(OUTCOMES, name, use)
    kind, expected, compared = BY_NAME[name], list_groups(BY_NAME[name]), compare(name)
    if use == "compared":
        assert compared.groups.get(name, []) == expected
        return
    links = compared.links.get(name, [])
    assert len(links) == sum(2 * len(group) - 1 for group in expected)
    if kind in SIMPLE:
        texts = {link["left"].rpartition("-")[2]: link["key"] for link in links}
        values = {str(group[0]): kind.values[group[0]] for group in expected}
        assert {at: read_key(text, values[at]) for at, text in texts.items()} == {
            at: fold_value(value) for at, value in values.items()
        }


def read_key(text: str, like: Any) -> str:
    """Return the value that a link shows, as a value of the type of another one."""
    if isinstance(like, str):
        return fold_value(json.loads(text))
    if isinstance(like, bool):
        return fold_value(text == "true")
    if isinstance(like, bytes):
        return fold_value(bytes.fromhex(text))
    if isinstance(like, datetime):
        return fold_value(datetime.fromisoformat(text.removesuffix("000Z")))
    if isinstance(like, int | float):
        return fold_value(type(like)(text) if not isinstance(like, float) else _read_float(text, like))
    if hasattr(like, "isoformat"):
        return fold_value(type(like).fromisoformat(text))
    return fold_value(type(like)(text).quantize(like)) if _is_small(like) else _read_decimal(text, like)


def _read_float(text: str, like: float) -> float:
    """Return a number; a FLOAT is shown by its shortest text."""
    number = float(text)
    return like if pa.scalar(number, pa.float32()).as_py() == like else number


def _is_small(number: Any) -> bool:
    return len(number.as_tuple().digits) < 28


def _read_decimal(text: str, like: Any) -> str:
    return fold_value(like) if type(like)(text) == like else text


def test_collated_texts_are_compared_by_their_bytes(spark: SparkSession) -> None:
    """A collation that ignores case makes no two texts one, neither of properties nor of IDs."""
    frame = spark.sql("SELECT x AS _id, x, array(x) AS y FROM (SELECT 'A' COLLATE UNICODE_CI AS x)")
    config = MergeSourceConfig.parse({"version": 2, "datasets": ["A a"], "equality": [["eq", "a.x", "a.y"]]})
    source = open_source(frame, 0, config)

    kinds = {name: source.frame.schema[name].dataType for name in ("_id", "x", "y", SCAN_ID)}
    text = StringType()
    assert kinds == {"_id": text, "x": text, "y": ArrayType(text, False), SCAN_ID: text}
