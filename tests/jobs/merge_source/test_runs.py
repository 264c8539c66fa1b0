"""Test runs with invalid input, repeated runs, runs after a failure, and runs that must not write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError, JobError
from airflow_merge_provider.jobs.merge_source.model import Entities
from airflow_merge_provider.jobs.merge_source.output import render
from airflow_merge_provider.jobs.merge_source.scan import source_scan
from tests.jobs.delta_log import list_commits
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import JSON, Pipe, build_table

RULE = {"equality": [["eq", "a.x", "b.x"]]}


def make_merged_pipe(pipe: MakePipe, **settings: Any) -> Pipe:
    """Create a pipe over two small tables that has run once."""
    made = pipe("AB", **{**RULE, **settings})
    made.write_rows("A", build_table({"_id": ["a1", "a2"], "x": [1, 2]}))
    made.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    made.run_job("first")
    return made


def test_a_missing_dataset_is_empty(pipe: MakePipe) -> None:
    """A missing dataset counts as empty with a warning that names it, and keeps its own offset."""
    made = pipe("ABC", equality=[["eq", "a.x", "c.x"], ["eq", "b.x", "c.x"]])
    made.write_rows("A", build_table({"_id": ["a1"], "x": [1]}))
    made.write_rows("C", build_table({"_id": ["c1"], "x": [1]}))

    report = made.run_job()

    assert [row["_id"] for row in made.read_rows()] == ["0|a1|2|c1"]
    assert any(
        said.startswith("dataset 'B' does not exist") and said.endswith("treated as empty")
        for said in report["warnings"]
    )
    assert report["sources"]["B"]["version"] is None


@pytest.mark.parametrize(
    ("existing", "settings", "named"),
    [("", {}, "dataset 'A'"), ("A", {"ignore_non_existent_datasets": False}, "dataset 'B'")],
    ids=["none exists", "one is waited for"],
)
def test_missing_datasets_are_refused(
    pipe: MakePipe, existing: str, settings: dict[str, Any], named: str
) -> None:
    """A run without any input is rejected, and so is a missing dataset that the configuration requires."""
    made = pipe("AB", **settings)
    for name in existing:
        made.write_rows(name, build_table({"_id": ["a1"]}))

    with pytest.raises(DataError, match=f"{named} does not exist at .*check the name and the warehouse"):
        made.run_job()

    assert made.read_version() is None


def build_texts(*values: Any) -> pa.Array:
    return pa.array(values, pa.string())


@pytest.mark.parametrize(
    ("bad", "settings", "words"),
    [
        (build_table({"key": ["a1"]}), {}, "there is no column '_id'"),
        (build_table({"_id": [1]}), {}, "column '_id' is BIGINT"),
        (build_table({"_id": build_texts("a1", None)}), {}, "entity without a string _id"),
        (build_table({"_id": build_texts("a1", "")}), {}, "entity without a string _id"),
        (build_table({"_id": ["a1"], "_deleted": ["true"]}), {}, "column '_deleted' is STRING"),
        (build_table({"_id": ["a1"], "$ids": [[1]]}), {}, r"column '\$ids' is ARRAY<BIGINT>"),
        (build_table({"_id": ["a1"], "x": [1]}), JSON, "no column 'entity'"),
        (build_table({"entity": [1]}), JSON, "column 'entity' is BIGINT"),
        (build_table({"entity": ['{"_id": "a1"}', "no json", None]}), JSON, "2 rows have no JSON object"),
        (build_table({"entity": ["[1]"]}), JSON, "1 rows have no JSON object"),
        (
            build_table({"entity": ['{"_id": 7}', '{"x": 1}', '{"_id": null}', '{"_id": ""}']}),
            JSON,
            "_id in 4 rows",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_input_that_holds_no_entities_is_refused(
    pipe: MakePipe, bad: pa.Table, settings: dict[str, Any], words: str
) -> None:
    """An input without valid entities is rejected; nothing is written.

    The error names the dataset, the problem and the remedy.
    """
    made = pipe("A", **settings)
    made.write_rows("A", bad)

    with pytest.raises(DataError, match=words) as refused:
        made.run_job()

    assert "dataset 'A'" in refused.value.message
    assert not refused.value.retryable
    assert made.read_version() is None


def test_an_error_leaves_the_target_as_it_was(pipe: MakePipe) -> None:
    """Duplicates, oversized clusters and invalid flags stop a rewrite before the target changes."""
    made = make_merged_pipe(pipe)
    before = made.read_rows()

    with pytest.raises(DataError, match="max_merged: 2 entities would be merged into one, the limit is 1"):
        made.run_job(full_refresh=True, max_merged=1)
    made.write_rows("B", build_table({"_id": ["a2"], "x": [7]}))
    with pytest.raises(DataError, match="duplicate output id 'a2': from A/a2 and B/a2"):
        made.run_job(full_refresh=True, identity="first")
    made.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))
    with pytest.raises(DataError, match="entity 'b1' is in 2 rows"):
        made.run_job(full_refresh=True)

    assert made.read_version() == 0
    assert made.read_rows() == before


@pytest.mark.parametrize("kind", ["files", "foreign"])
def test_a_target_of_somebody_else_is_refused(pipe: MakePipe, kind: str) -> None:
    """Neither other files nor a Delta table that this job did not write are overwritten."""
    made = pipe("A")
    made.write_rows("A", build_table({"_id": ["a1"]}))
    if kind == "files":
        made.target.mkdir()
        (made.target / "precious.txt").write_text("mine", encoding="utf-8")
    else:
        write_deltalake(str(made.target), build_table({"precious": [1]}))
    words = (
        "is not a Delta table" if kind == "files" else "was written by another writer, not by merge_source"
    )

    for full_refresh in (False, True):
        with pytest.raises(DataError, match=words):
            made.run_job(full_refresh=full_refresh)

    if kind == "files":
        assert [file.name for file in made.target.iterdir()] == ["precious.txt"]
    else:
        assert made.read_version() == 0


def test_a_run_again_does_nothing(pipe: MakePipe) -> None:
    """A run with the same inputs and configuration commits no version; its report repeats the figures."""
    made = make_merged_pipe(pipe)

    again = made.run_job("second", comment="not part of the configuration", max_merged=7)

    assert again["changed"] is False
    assert {name: count for name, count in again["counts"].items() if count} == {
        "entities": 3,
        "live_rows": 2,
        "merged_rows": 1,
        "outputs": 2,
    }
    assert made.read_version() == again["target"]["version"] == 0


def test_a_retry_reports_its_own_commit(pipe: MakePipe) -> None:
    """A retry of an attempt that died after its commit reports "changed" and writes nothing again."""
    made = make_merged_pipe(pipe)

    again = made.run_job("first")

    assert again["changed"] is True
    assert made.read_version() == again["target"]["version"] == 0
    assert [entry["run"]["number"] for entry in list_commits(made.target)] == [1]


@pytest.mark.parametrize("until", ["plan", "transform"])
def test_a_dry_run_writes_nothing(pipe: MakePipe, until: str) -> None:
    """A dry run writes neither a new target nor a new version; a transform shows what a run would find."""
    made = pipe("AB", **RULE)
    made.write_rows("A", build_table({"_id": ["a1"], "x": [1]}))
    made.write_rows("B", build_table({"_id": ["b1"], "x": [1]}))

    report = made.run_job(until=until)

    assert report["dry_run"] is True
    assert report["changed"] is False
    assert report["target"]["version"] is None
    assert not made.target.exists()
    assert report["sources"]["A"]["version"] == 0
    if until == "transform":
        assert report["counts"]["merged_rows"] == 1
        assert report["details"]["largest"] == {"size": 2, "members": ["A/a1", "B/b1"]}


def test_an_empty_source_is_accepted_or_not(pipe: MakePipe) -> None:
    """Datasets without rows give an empty target, or an error if ``if_source_empty`` requires it."""
    made = pipe("A")
    made.write_rows("A", build_table({"_id": pa.array([], pa.string())}))

    with pytest.raises(DataError, match="if_source_empty: the datasets contain no entities"):
        made.run_job(if_source_empty="fail")
    assert made.read_version() is None
    report = made.run_job()

    assert report["counts"]["outputs"] == 0
    assert made.read_rows() == []


def one_key_hash(entities: Entities) -> Entities:
    keys = {
        order: (at, np.full_like(hashes, 5), seconds)
        for order, (at, hashes, seconds) in entities.keys.items()
    }
    return replace(entities, keys=keys)


def one_id_hash(entities: Entities) -> Entities:
    return replace(entities, hashes=np.full_like(entities.hashes, 5))


@pytest.mark.parametrize("spoil", [one_key_hash, one_id_hash])
def test_colliding_hashes_are_noticed_and_drawn_anew(
    pipe: MakePipe, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Entities], Entities]
) -> None:
    """If different keys or ids have one hash, they are not merged: the run logs it and uses another seed."""
    made = pipe("AB", **RULE)
    made.write_rows("A", build_table({"_id": ["a1", "a2"], "x": [1, 2]}))
    made.write_rows("B", build_table({"_id": ["b1", "b3"], "x": [1, 3]}))
    read = source_scan.read_entities

    def read_colliding(*args: Any) -> Entities:
        again = any("hashed again" in line for line in made.said)
        return read(*args) if again else spoil(read(*args))

    monkeypatch.setattr(source_scan, "read_entities", read_colliding)

    report = made.run_job()

    assert made.read_clusters() == [["a1", "b1"], ["a2"], ["b3"]]
    assert report["warnings"] == ["two values have the same hash with seed 0: all values were hashed again"]


def test_hashes_that_always_collide_end_the_run(pipe: MakePipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails after a few seeds with collisions, so that different values are never merged."""
    made = pipe("A")
    made.write_rows("A", build_table({"_id": ["a1", "a2"]}))
    read = source_scan.read_entities
    monkeypatch.setattr(source_scan, "read_entities", lambda *args: one_id_hash(read(*args)))

    with pytest.raises(JobError, match="hashes collided"):
        made.run_job()

    assert made.read_version() is None


@pytest.mark.parametrize("strategy", ["default", "compact", "list"])
def test_many_rows_are_written_like_few(
    lean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    """Singletons have the same content whether they bypass clustering or not."""
    written = []
    for few in (render._PLANNED_ONCE_MAX, 0):
        monkeypatch.setattr(render, "_PLANNED_ONCE_MAX", few)
        merge = Pipe(
            lean,
            tmp_path / str(few),
            datasets=["A a", "B b"],
            equality=[["eq", "a.x", "b.x"]],
            strategy=strategy,
        )
        merge.write_json("A", [{"_id": "a1", "x": 1}, {"_id": "a2", "x": [3, 3], "n": {"k": None}, "e": []}])
        deleted = {"_id": "b2", "x": [1], "_deleted": True, "$replaced": True, "$ids": ["o1", "o2"]}
        merge.write_json("B", [{"_id": "b1", "x": [1]}, deleted, {"_id": "b3", "$replaced": True, "z": None}])
        merge.run_job(**JSON)
        table = lean.read.format("delta").load(str(merge.target)).drop("_ts", "entity").toArrow()
        written.append([merge.read_rows(), table.sort_by("_updated").to_pylist()])

    assert written[0] == written[1]
    assert len(written[0][0]) == 4


def test_typed_rows_have_one_hash_whichever_way_they_go(
    lean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A singleton's content hash, computed without VARIANT, equals the hash of its VARIANT."""
    texts = [
        "plain",
        'quo"te',
        "back\\slash",
        "tab\t",
        "\x00\x1f\x7f",
        "\u2028 ä ß 漢 😀",
        "</script>",
        "",
        None,
    ]
    columns = {
        "_id": [f"a{place}" for place in range(len(texts))],
        "x": texts,
        'odd "name"\t\\': texts[::-1],
        "\uff5e": ["before a pair"] * len(texts),
        "\U0001f600": ["a pair"] * len(texts),
        "number": [place << 62 if place % 2 else -place for place in (0, 1) * 4] + [None],
        "flag": [True, False, None] * 3,
    }
    alike = {"_id": ["b1", "b2"], "NUMBER": ["not", "the same"], "Flag": [1, None]}
    written = []
    for few in (render._PLANNED_ONCE_MAX, 0):
        monkeypatch.setattr(render, "_PLANNED_ONCE_MAX", few)
        merge = Pipe(lean, tmp_path / str(few), datasets=["A a", "B b"], equality=[["eq", "a.x", "b.NUMBER"]])
        merge.write_rows("A", build_table(columns))
        merge.write_rows("B", build_table(alike))
        merge.run_job()
        rows = lean.read.format("delta").load(str(merge.target))
        written.append(rows.selectExpr("_hash", "to_json(entity) AS entity").toArrow().sort_by("_hash"))

    assert written[0].num_rows == len(texts) + 2
    assert written[0].equals(written[1])
