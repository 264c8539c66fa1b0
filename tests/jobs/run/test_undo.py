"""Test that an undo returns the rows, offsets and side tables of a target, and how runs continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.before_spark import find_result
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.core.table_history import trace_lineage
from airflow_merge_provider.core.undo.choice import choose_undo
from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.explain.dispatch import list_history
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.jobs.joiner import job as joiner
from airflow_merge_provider.jobs.merge_engine import job as merge_engine
from airflow_merge_provider.jobs.merge_load import job as merge_load
from airflow_merge_provider.jobs.merge_source import job as merge_source
from airflow_merge_provider.jobs.run.retry import run_attempt
from airflow_merge_provider.jobs.undo import job as undo
from tests.long import all_long_but
from tests.reports import check_report
from tests.tables import read_rows

pytestmark = pytest.mark.spark

JOBS = {
    "joiner": joiner.run, "merge_engine": merge_engine.run, "merge_load": merge_load.run,
    "merge_source": merge_source.run, "undo": undo.run,
}  # fmt: skip
BOTH = {"inputs": {"a": "a", "b": "b"}, "join_keys": "a._id = b._id", "join_type": "outerjoin"}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "merge_source": (
        "merge_source",
        {
            "version": 2, "datasets": ["a a", "b b"], "equality": [["eq", "a.name", "b.name"]],
            "stable_id": True, "replaced_by": True, "metrics": "metrics",
        },
    ),
    "upsert": ("merge_load", {"strategy": "upsert", "source": "a", "primary_key": ["_id"]}),
    "nested": (
        "merge_load", {"strategy": "upsert", "source": "a", "primary_key": "_id", "nested": "tables"},
    ),
    "appended": ("merge_load", {"strategy": "delete-insert", "source": "a"}),
    "scd2": ("merge_load", {"strategy": "scd2", "source": "a"}),
    "history": ("merge_load", {"strategy": "scd2", "source": "a", "natural_key": "_id"}),
    "merge_engine": ("merge_engine", {"source": "a", "primary_key": ["_id"], "changelog": "changes"}),
    "compacted": ("merge_engine", {"source": "a", "primary_key": ["_id"], "compact_ratio": 0.1}),
    "joiner": ("joiner", {**BOTH, "required_inputs": "a", "unmatched": "unmatched"}),
}  # fmt: skip
# Numbers of runs, which are never used again.
NUMBERS = ("_updated", "_previous", "_run", "_ts", "run", "$stable_id", "_hash")


class Lake:
    """Two sources and a target, and runs over them."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "upsert") -> None:
        self._spark, self.folder = spark, folder
        self._job, self._config = CONFIGS[name]
        self.runs = 0
        # A fold reads appended rows.
        self._mode: Any = "append" if self._job == "merge_engine" else "overwrite"
        self.write_rows([("1", "x", 1), ("2", "y", 2)], [("1", "x", 1), ("3", "z", 3)])

    def write_rows(self, first: list[tuple[str, str, int]], second: list[tuple[str, str, int]]) -> None:
        """Replace the rows of both sources."""
        for name, rows in (("a", first), ("b", second)):
            columns = {
                "_id": [row[0] for row in rows], "name": [row[1] for row in rows],
                "n": [row[2] for row in rows], "tags": [[row[1], row[0]] for row in rows],
            }  # fmt: skip
            write_deltalake(str(self.folder / name), pa.table(columns), mode=self._mode)

    def change_rows(self) -> None:
        """Change a row, delete one and add one."""
        first = [("1", "xx", 10), ("4", "z", 4)]
        self.write_rows(first, [("1", "x", 1), ("3", "z", 3), ("4", "z", 4), ("5", "v", 5)])

    def run(self, run_id: str = "") -> dict[str, Any]:
        """Run the configuration."""
        self.runs += 1
        return self._execute(self._job, {"target": "t", **self._config}, run_id or f"r{self.runs}")

    def undo(self, run_id: str = "", until: Any = "commit", **config: Any) -> dict[str, Any]:
        """Undo runs of the target."""
        self.runs += 1
        return self._execute("undo", {"target": "t", **config}, run_id or f"u{self.runs}", until)

    def build_undo(self, **fields: Any) -> JobRequest:
        """Build the request of an undo."""
        return self._build_request("undo", {"target": "t"}, "u", **fields)

    def execute_sql(self, statement: str) -> None:
        """Execute a statement of another program on the target."""
        self._spark.sql(statement.format(t=f"delta.`{self.folder / 't'}`")).collect()

    @property
    def version(self) -> int:
        return DeltaTable(str(self.folder / "t")).version()

    def read_tables(self, *, numbers: bool = True) -> dict[str, list[str]]:
        """Return the rows of every table that a run writes; a table without rows is like none."""
        contents = {name: sorted(self._read_rows(name, numbers=numbers)) for name in self._list_tables()}
        return {name: rows for name, rows in contents.items() if rows}

    def read_numbers(self) -> dict[str, set[int]]:
        """Return the numbers that a merge source gives, by column; none of another target."""
        if self._job != "merge_source":
            return {}
        rows = self._spark.read.format("delta").load(str(self.folder / "t")).collect()
        return {name: {row[name] for row in rows} - {None} for name in ("_updated", "$stable_id")}

    def set_flags(self) -> None:
        """Mark all tables that a run writes as populated."""
        for name in self._list_tables():
            table = f"delta.`{self.folder / name}`"
            self._spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('merge.populated' = 'true')").collect()

    def read_flags(self) -> list[str]:
        """Return the names of the tables with the populated flag."""
        tables = {name: DeltaTable(str(self.folder / name)) for name in self._list_tables()}
        return [name for name, table in tables.items() if "merge.populated" in table.metadata().configuration]

    def _list_tables(self) -> list[str]:
        names = (path.parent.name for path in self.folder.glob("*/_delta_log"))
        return sorted(name for name in names if name not in {"a", "b", "metrics"})

    def _read_rows(self, name: str, *, numbers: bool) -> Iterator[str]:
        hidden = () if numbers else NUMBERS
        if self._job == "merge_source" and name == "t":
            # delta-rs does not read its VARIANT column.
            rows = self._spark.read.format("delta").load(str(self.folder / name)).drop(*hidden)
            yield from (str(row.asDict(recursive=True)) for row in rows.collect())
            return
        for row in read_rows(self.folder / name):
            yield str({column: value for column, value in row.items() if column not in hidden})

    def _execute(
        self, job: str, config: dict[str, Any], run_id: str, until: Any = "commit"
    ) -> dict[str, Any]:
        request = self._build_request(job, config, run_id, until=until)
        return check_report(run_attempt(self._spark, request, Progress(lambda _: None), JOBS[job]))

    def _build_request(self, job: Any, config: dict[str, Any], run_id: str, **fields: Any) -> JobRequest:
        token = RunToken(dag_id="d", run_id=run_id, task_id=job)
        started_at = 1_704_067_200_000_000 + self.runs * 1_000_000
        return JobRequest(
            job=job, config=config, run=token, warehouse=str(self.folder), started_at=started_at, **fields
        )


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


@pytest.mark.parametrize("name", all_long_but(CONFIGS, "compacted"))
def test_the_next_run_does_the_work_of_an_undone_run(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """An undo returns the rows of all tables as they were, its undo those of the run, and the next run too.

    That is so however the run is named, also if it has compacted the target. The undo of an undo leaves out
    what the run had removed from side tables. No number is used again.
    """
    lake = Lake(spark, tmp_path, name)
    lake.run()
    first, first_numbers = lake.read_tables(), lake.read_numbers()
    lake.change_rows()
    lake.run()
    used_numbers = lake.read_numbers()
    second, values, number = lake.read_tables(), lake.read_tables(numbers=False), lake.runs
    history = list_history("t", str(tmp_path), 10)
    commits = [CommitRef.from_entry(entry) for entry in history]
    assert [commit.token.get("run_id") for commit in commits if commit.kind == "run"] == ["r2", "r1"]
    assert (commits[0].operation == "REORG") == (name == "compacted")
    number_of_run = str(commits[-2].state["number"])
    for choice in ({}, {"run": "r2"}, {"run": number_of_run}, {"to_version": 0}):
        config = UndoConfig(target="t", **choice)
        chosen = choose_undo(config, CONFIGS[name][0], history, trace_lineage(history, lambda _: None))
        assert chosen is not None
        assert (chosen.version, [run.version for run in chosen.undone]) == (0, [1])
        assert chosen.list_warnings() == []

    planned = lake.undo(until="transform")
    report = lake.undo("undo")

    assert planned["counts"] == report["counts"]
    assert report["run_mode"] == "undo"
    assert report["counts"]["runs"] == 1
    assert lake.read_tables() == first

    lake.undo(run="undo")
    assert lake.read_tables() == second
    lake.undo()
    assert lake.read_tables() == first

    lake.runs = number - 1  # the next run has the load time of the undone one
    again = lake.run(run_id=f"r{number}")
    assert again["run_mode"] == "incremental" or name == "joiner", again["run_mode_reason"]
    assert lake.read_tables(numbers=False) == values
    for column, numbers in lake.read_numbers().items():
        assert min(numbers - first_numbers[column]) > max(used_numbers[column])


@pytest.mark.long
@pytest.mark.parametrize("name", ["merge_source", "nested", "merge_engine", "joiner"])
def test_an_undone_first_run_comes_back(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Without a run in force, the target has no rows, an undo does nothing, and a run is like the first.

    The undo of an undo brings back the rows and flags of side tables too, also after another first run.
    """
    lake = Lake(spark, tmp_path, name)
    contents: list[Any] = []
    flags: list[str] = []
    for number in (1, 2):
        lake.runs = 0  # both have the same load time
        lake.run(f"first-{number}")
        contents.append((lake.read_tables(), lake.read_tables(numbers=False)))
        lake.set_flags()
        flags = lake.read_flags()
        lake.undo(f"undo-{number}")
        assert (lake.read_tables(), lake.read_flags()) == ({}, [])
        if name == "merge_source":
            assert len(read_rows(lake.folder / "metrics")) == number
    assert contents[0][1] == contents[1][1]
    rows = contents[1][0]
    assert lake.undo("nothing")["run_mode"] == "noop"

    lake.undo(run="undo-2")

    assert (lake.read_tables(), lake.read_flags()) == (rows, flags)
    lake.change_rows()
    lake.run()
    lake.undo()
    assert lake.read_tables() == rows


def test_a_first_run_without_rows_is_undone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The undo commits although there are no rows to delete; of the properties it only reverts the flag.

    Its undo brings the flag back, also if an attempt died after it had removed the flag, unless it would
    revert rows of another program.
    """
    lake.write_rows([], [])
    lake.run()
    lake.execute_sql("ALTER TABLE {t} SET TBLPROPERTIES ('merge.populated' = 'true', 'x.contact' = 'y')")

    report = lake.undo()

    assert (report["run_mode"], report["target"]["version"], report["warnings"]) == ("undo", lake.version, [])
    properties = DeltaTable(str(lake.folder / "t")).metadata().configuration
    assert (properties.get("merge.populated"), properties["x.contact"]) == (None, "y")
    assert lake.undo()["run_mode"] == "noop"
    report = lake.undo(run="u2")
    assert (report["details"]["restored"][0]["run_id"], report["warnings"]) == ("r1", [])
    properties = DeltaTable(str(lake.folder / "t")).metadata().configuration
    assert (properties["merge.populated"], properties["x.contact"]) == ("true", "y")
    with monkeypatch.context() as context:
        context.setattr(undo, "commit_run", _die)
        with pytest.raises(MemoryError):
            lake.undo("again")
    assert "merge.populated" not in DeltaTable(str(lake.folder / "t")).metadata().configuration
    lake.undo("again")
    lake.undo(run="again")
    assert DeltaTable(str(lake.folder / "t")).metadata().configuration["merge.populated"] == "true"
    lake.undo("third")
    lake.execute_sql("INSERT INTO {t} (_id) VALUES ('7')")
    version = lake.version
    with pytest.raises(DataError, match=f"another writer changed rows in version {version}"):
        lake.undo(run="third")


@pytest.mark.parametrize("name", all_long_but(["nested", "merge_engine", "joiner"], "joiner"))
def test_an_undo_that_died_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An undo that died after it had emptied the side tables is done by the next attempt."""
    lake = Lake(spark, tmp_path, name)
    lake.run()
    with monkeypatch.context() as context:
        context.setattr(undo, "commit_run", _die)
        with pytest.raises(MemoryError):
            lake.undo("u")

    assert lake.undo("u")["run_mode"] == "undo"

    assert lake.read_tables() == {}


def _die(*_: Any) -> None:
    raise MemoryError


@pytest.mark.long
def test_undos_go_back_run_by_run(lake: Lake) -> None:
    """A second undo undoes the run before, and an undo of an undo brings its run back."""
    contents = []
    for number in range(3):
        lake.write_rows([("1", "x", number)], [])
        lake.run()
        contents.append(lake.read_tables())

    lake.undo()
    assert lake.read_tables() == contents[1]
    lake.undo(run_id="second")
    assert lake.read_tables() == contents[0]
    report = lake.undo(run="second")
    assert lake.read_tables() == contents[1]
    assert [run["run_id"] for run in report["details"]["restored"]] == ["r2"]
    with pytest.raises(DataError, match="'r3', version 2, is already undone"):
        lake.undo(run="r3")
    report = lake.undo(run="r1")
    assert [run["run_id"] for run in report["details"]["undone"]] == ["r2", "r1"]
    assert lake.read_tables() == {}


@pytest.mark.long
def test_a_change_of_another_program_is_not_reverted_unasked(lake: Lake) -> None:
    """An undo names the change of another program; with its version, both are reverted."""
    lake.run()
    rows = lake.read_tables()
    lake.change_rows()
    lake.run()
    lake.execute_sql("DELETE FROM {t} WHERE _id = '4'")
    version = lake.version

    with pytest.raises(DataError, match=r"another writer changed rows in version 2 \(DELETE\)") as refusal:
        lake.undo()

    assert "set to_version to 0" in str(refusal.value)
    assert lake.version == version
    report = lake.undo(to_version=0)
    assert report["warnings"] == ["the change of another writer in version 2 (DELETE) is reverted"]
    assert lake.read_tables() == rows
    # The version of the first run keeps its rows, which the next undo reverts.
    lake.execute_sql("DELETE FROM {t} WHERE _id = '1'")
    with pytest.raises(DataError, match=r"set to_version to 0 to revert everything after the run and undo"):
        lake.undo()
    lake.undo(to_version=0)
    lake.undo()
    assert lake.read_tables() == {}


@pytest.mark.long
def test_maintenance_does_not_prevent_an_undo(lake: Lake) -> None:
    """Commits that change no rows belong to the run before them."""
    lake.run()
    lake.execute_sql("OPTIMIZE {t}")
    rows = lake.read_tables()
    lake.change_rows()
    lake.run()
    lake.execute_sql("ALTER TABLE {t} SET TBLPROPERTIES ('x.contact' = 'y')")
    lake.execute_sql("ALTER TABLE {t} ADD CONSTRAINT small CHECK (n IS NULL OR n < 100)")
    lake.execute_sql("ALTER TABLE {t} SET TBLPROPERTIES ('merge.populated' = 'true')")

    report = lake.undo()

    assert lake.read_tables() == rows
    assert report["warnings"] == [
        f"the change of the table's definition in version {version} ({operation}) is reverted too: "
        "make it again if you still need it"
        for version, operation in ((3, "ADD CONSTRAINT"), (2, "SET TBLPROPERTIES"))
    ]


def test_a_dry_run_shows_what_would_be_undone(lake: Lake) -> None:
    """A dry run needs no Spark, and names the run, its version and the inverse of its rows."""
    lake.run()
    lake.change_rows()
    lake.run()
    version = lake.version

    result = find_result(lake.build_undo(until="transform"), conf={}, is_local=True, on_line=print)

    assert result is not None
    report = result.report.as_json()
    assert lake.version == version
    assert (report["dry_run"], report["changed"]) == (True, False)
    undone = [(run["run_id"], run["number"], run["version"]) for run in report["details"]["undone"]]
    assert undone == [("r2", 2, 1)]
    assert (report["rows"]["inserted"], report["rows"]["updated"], report["rows"]["deleted"]) == (0, 1, 1)
    assert report == {**lake.undo(until="transform", run_id="u"), "seconds": report["seconds"]}


def test_a_retry_of_an_undo_reports_its_commit(lake: Lake) -> None:
    """A retry undoes nothing else; the undo is one commit, and the next run reads the sources as they are."""
    lake.run()
    lake.change_rows()
    lake.run()
    done = lake.undo(run_id="u")

    retry = lake.undo(run_id="u")

    assert retry["target"]["version"] == done["target"]["version"] == lake.version == 2
    assert retry["counts"] == done["counts"]
    assert retry["details"] == done["details"]
    assert DeltaTable(str(lake.folder / "t")).history(1)[0]["operation"] == "RESTORE"
    lake.write_rows([("1", "newest", 7), ("9", "new", 9)], [])
    lake.run(run_id="r2")
    rows = {row["_id"]: row["name"] for row in read_rows(lake.folder / "t")}
    assert rows == {"1": "newest", "2": "y", "9": "new"}


def test_an_undo_needs_the_files_of_the_version_before(lake: Lake) -> None:
    """If VACUUM has removed them, the undo is refused, and the error says so."""
    lake.run()
    lake.change_rows()
    lake.run()
    lake.execute_sql("REORG TABLE {t} APPLY (PURGE)")
    DeltaTable(str(lake.folder / "t")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    rows, version = lake.read_tables(), lake.version

    with pytest.raises(DataError, match="because VACUUM has removed them"):
        lake.undo()

    assert (lake.version, lake.read_tables()) == (version, rows)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"run": "r9"}, "the target has no run 'r9'"),
        ({"to_version": 0}, "0 is not an earlier version of the target"),
    ],
)
def test_what_cannot_be_undone_is_refused_before_spark(
    lake: Lake, config: dict[str, Any], message: str
) -> None:
    """A run or a version that does not exist is an error that names what exists."""
    lake.run()
    request = lake.build_undo()

    with pytest.raises(DataError, match=message):
        find_result(
            request.model_copy(update={"config": {**request.config, **config}}),
            conf={},
            is_local=True,
            on_line=print,
        )


def test_a_table_of_another_program_is_refused(lake: Lake) -> None:
    """Runs of other programs are undone with RESTORE."""
    write_deltalake(str(lake.folder / "t"), pa.table({"x": [1]}))

    with pytest.raises(DataError, match="was not written by a run of this package"):
        lake.undo()
