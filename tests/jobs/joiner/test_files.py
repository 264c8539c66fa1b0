"""Test files as the target of a join: atomic replace and append despite crashes and other writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConflictError, DataError, JobError
from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.jobs.joiner.file_target import FileTarget
from airflow_merge_provider.jobs.joiner.folder import Folder, FolderRun
from airflow_merge_provider.jobs.spark.formats import spark_format
from tests.jobs.joiner.conftest import MakeLake
from tests.jobs.joiner.lake import PURCHASES, TARGET, Lake

LEFT = [(1, "Alex", 23), (2, "Bob", 24), (2, "Bob", 25), (3, "Cathie", None)]
INNER = LEFT[:3]
ONE_MORE = pa.table({"purchase": [27], "customer": [3]})
SCHEMA = "id long, name string, purchase long"
OPTIONS = {"csv": {"sep": ";", "emptyValue": '""'}}


def list_visible(join: Lake) -> list[str]:
    """Return the file names that a reader of the folder sees."""
    return sorted(file.name for file in (join.folder / TARGET).iterdir() if file.name[0] not in "._")


def read_rows(join: Lake, kind: str = "parquet") -> list[tuple[Any, ...]]:
    reader = join.spark.read.format(spark_format(join.spark, kind)).schema(SCHEMA).option("header", "true")
    frame = reader.options(**OPTIONS.get(kind, {})).load(str(join.folder / TARGET))
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def find_target(join: Lake, mode: str = "overwrite") -> FileTarget:
    config = JoinerConfig.parse({**join.settings, "target_format": "parquet", "write_mode": mode})
    return FileTarget.find_target(
        join.spark, Dataset(TARGET, path=str(join.folder / TARGET)), config, join.build_request("mine")
    )


def build_state(run_id: str) -> dict[str, Any]:
    return {"token": {"run_id": run_id}, "fingerprint": "", "sources": {}}


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "avro", "orc"])
def test_files_of_every_format_are_replaced_as_a_whole(lake: MakeLake, kind: str) -> None:
    """A second run replaces the files of the first one, and writes nothing without a change.

    This holds for files of every format.
    """
    join = lake(target_format=kind, target_options=OPTIONS.get(kind))

    first = join.run_job()
    assert (first["target"]["version"], first["counts"]) == (
        1,
        {"records_in": 7, "outputs": 4, "unmatched": 0},
    )
    assert read_rows(join, kind) == LEFT
    before = list_visible(join)
    join.write_rows("purchases", ONE_MORE, mode="append")
    second = join.run_job()

    assert (second["target"]["version"], second["counts"]["outputs"]) == (2, 4)
    assert read_rows(join, kind) == [*INNER, (3, "Cathie", 27)]
    assert not set(before) & set(list_visible(join))
    again = join.run_job()
    assert (again["changed"], again["target"]["version"]) == (False, 2)
    assert again["counts"] == {**second["counts"], "records_in": 0}


def test_rows_are_added_once_for_each_run(lake: MakeLake) -> None:
    """Each run appends its rows once: a retry reports the rows of its first try, a dry run appends none."""
    join = lake(target_format="parquet", write_mode="append", join_type="innerjoin")
    join.run_job("r1")
    join.write_rows("purchases", ONE_MORE, mode="append")

    assert join.run_job("r1")["changed"]
    assert len(read_rows(join)) == 3
    assert join.run_job("r2", until="transform")["counts"]["outputs"] == 4
    assert join.run_job("r2")["counts"]["outputs"] == 4
    assert len(read_rows(join)) == 3 + 4


def test_what_does_not_fit_is_not_added(lake: MakeLake) -> None:
    """Every difference of columns, types, format and options is reported before anything is computed."""
    join = lake(target_format="parquet", write_mode="append")
    join.run_job()

    with pytest.raises(DataError) as refused:
        join.run_job(selected_fields="customers.name as id, purchases.customer", target_format="json")

    messages = [problem.message.partition(": ")[2] for problem in refused.value.problems]
    assert messages == [
        "the target has no column 'customer'",
        "'id' is long in the target and string in the output",
        "the output has no column 'name'",
        "the output has no column 'purchase'",
        "the files of the target have format parquet and options {}",
    ]
    assert len(read_rows(join)) == 4


def test_a_join_without_rows_leaves_files_with_its_columns(lake: MakeLake) -> None:
    """A join without rows writes files with its schema, so that readers find the columns."""
    join = lake(target_format="parquet", join_type="innerjoin")
    join.write_rows("purchases", PURCHASES.slice(0, 0))

    assert join.run_job()["counts"] == {"records_in": 3, "outputs": 0, "unmatched": 0}
    frame = join.spark.read.parquet(str(join.folder / TARGET))
    assert (frame.columns, frame.collect()) == (["id", "name", "purchase"], [])


def test_a_run_that_died_before_it_happened_leaves_nothing(lake: MakeLake, monkeypatch: Any) -> None:
    """After a run that died before its commit, readers see the previous files.

    The next run deletes what was staged.
    """
    join = lake(target_format="parquet")
    join.run_job()
    before = list_visible(join)
    join.write_rows("purchases", ONE_MORE, mode="append")
    monkeypatch.setattr(Folder, "record_run", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        join.run_job("r2")
    monkeypatch.undo()
    assert list_visible(join) == before

    assert join.run_job("r2")["target"]["version"] == 2
    assert read_rows(join) == [*INNER, (3, "Cathie", 27)]
    assert [path.name for path in (join.folder / TARGET / "_merge").iterdir()] == ["ledger"]


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_a_run_that_died_after_it_happened_is_finished_by_the_next(
    lake: MakeLake, monkeypatch: Any, moment: str
) -> None:
    """After a run that died after its commit, its retry reports the run and moves the rest of its files."""
    join = lake(target_format="parquet")
    join.run_job("r1")
    join.write_rows("purchases", ONE_MORE, mode="append")
    dies_in = {"before": "settle_run", "while": "remove_path", "after": "_remove_old_runs"}[moment]
    monkeypatch.setattr(Folder, dies_in, raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        join.run_job("r2")
    monkeypatch.undo()

    retried = join.run_job("r2")

    assert (retried["changed"], retried["target"]["version"]) == (True, 2)
    assert read_rows(join) == [*INNER, (3, "Cathie", 27)]
    assert (join.folder / TARGET / "_SUCCESS").exists()


def raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_of_two_runs_at_once_one_writes(lake: MakeLake) -> None:
    """Of two concurrent runs one writes; the other one fails and leaves no files."""
    join = lake()
    mine, other = find_target(join, "append"), find_target(join, "append")
    frame = join.spark.range(3)
    assert other.commit_rows(join.spark, frame, build_state("other")).version == 1

    with pytest.raises(ConflictError, match="run 1 already exists"):
        mine.commit_rows(join.spark, frame, build_state("mine"))

    target = find_target(join)
    assert (target.state["token"], target.last and target.last.rows) == ({"run_id": "other"}, 3)
    assert len(list_visible(join)) == len(target.content.last.files)


def test_a_run_whose_staged_files_are_taken_away_says_who_was_first(lake: MakeLake, monkeypatch: Any) -> None:
    """A run whose staged files another run deleted fails with the name of that run.

    Spark's own error would name a missing file only; it is kept if no other run caused it.
    """
    join = lake()
    mine = find_target(join)
    writer = type(join.spark.range(1).write)
    monkeypatch.setattr(writer, "save", raise_error)
    with pytest.raises(JobError, match="the disk is full"):
        mine.commit_rows(join.spark, join.spark.range(1), build_state("mine"))
    monkeypatch.undo()
    find_target(join).commit_rows(join.spark, join.spark.range(1), build_state("other"))
    monkeypatch.setattr(writer, "save", raise_error)

    with pytest.raises(ConflictError, match="run 1 already exists"):
        mine.commit_rows(join.spark, join.spark.range(1), build_state("mine"))


def raise_error(*_: Any) -> None:
    raise JobError("the disk is full")


def test_a_run_whose_written_files_are_taken_away_says_who_was_first(
    lake: MakeLake, monkeypatch: Any
) -> None:
    """A run whose written files another run deleted fails with the name of that run.

    If there was no other run, Spark has written to a location that this process cannot see.
    """
    join = lake()
    mine = find_target(join)
    writer = type(join.spark.range(1).write)
    save = writer.save
    monkeypatch.setattr(writer, "save", lambda self, _: save(self, str(join.folder / "elsewhere")))
    with pytest.raises(JobError, match="do not see the same files"):
        mine.commit_rows(join.spark, join.spark.range(1), build_state("mine"))
    monkeypatch.undo()

    def lose_files(self: Any, path: str) -> None:
        save(self, path)
        monkeypatch.undo()
        find_target(join).commit_rows(join.spark, join.spark.range(1), build_state("other"))

    monkeypatch.setattr(writer, "save", lose_files)

    with pytest.raises(ConflictError, match="run 1 already exists"):
        mine.commit_rows(join.spark, join.spark.range(1), build_state("mine"))


def test_files_of_others_are_left_alone(lake: MakeLake) -> None:
    """A folder with files of others, or with a table, is rejected as a target."""
    join = lake(target_format="csv")
    folder = join.folder / TARGET
    folder.mkdir()
    (folder / "mine.csv").write_text("kept\n")

    with pytest.raises(DataError, match=r"contains files that no join wrote: mine\.csv"):
        join.run_job()
    with pytest.raises(DataError, match="contains files that no join wrote: _delta_log"):
        join.run_job(target="purchases", inputs={"customers": "customers", "purchases": "customers"})
    assert (folder / "mine.csv").read_text() == "kept\n"


def test_files_that_somebody_removed_are_written_again(lake: MakeLake) -> None:
    """Overwriting writes removed files again without a change of the inputs; appending fails.

    Appending would hide the loss.
    """
    join = lake(target_format="parquet")
    join.run_job()
    (lost, *_) = (join.folder / TARGET).glob("part-*")
    lost.unlink()

    with pytest.raises(DataError, match=f"lacks files that earlier runs wrote: {lost.name}"):
        join.run_job(write_mode="append")
    assert join.run_job()["changed"]
    assert read_rows(join) == LEFT


def test_the_ledger_stays_short(tmp_path: Path) -> None:
    """The ledger keeps the newest of a thousand runs."""
    folder = Folder(str(tmp_path))

    write_runs(folder, 30)

    assert folder.read_content().files == {"part-30"}
    assert len(list((tmp_path / "_merge" / "ledger").iterdir())) == 2 * 20


@pytest.mark.parametrize("later", [1, 5, 25], ids=["one run", "five runs", "runs until its entry is gone"])
@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_run_that_slept_before_it_happened_has_lost(store: str, later: int, tmp_path: Path) -> None:
    """A run that was suspended before its commit changes nothing: its number is taken.

    Its staged files are deleted.
    """
    folder = Folder(f"memory://{tmp_path}" if store == "memory" else str(tmp_path))
    write_runs(folder, 2)
    sleeping = stage_entry(folder)

    write_runs(folder, later)

    assert not folder.record_run(sleeping)
    assert folder.read_content().files == {f"part-{2 + later}"}
    assert folder.read_content().last.number == 2 + later


def write_runs(folder: Folder, count: int) -> None:
    """Execute runs of one file each; every run replaces the file of the previous one."""
    for _ in range(count):
        entry = stage_entry(folder)
        assert folder.record_run(entry)
        folder.settle_run(entry)


def stage_entry(folder: Folder) -> FolderRun:
    """Return the ledger entry of the next run, whose file is staged."""
    content = folder.read_content()
    number = content.last.number + 1 if content.last else 1
    stage = folder.name_stage(number)
    filesystem, path = fsspec.core.url_to_fs(folder.build_uri(f"{stage}/part-{number}"))
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, b"")
    return entry_of(number, stage, content.files)


def entry_of(number: int, stage: str, before: frozenset[str]) -> FolderRun:
    name = f"part-{number}"
    return FolderRun(number, stage, (name,), tuple(before), (name,), {})
