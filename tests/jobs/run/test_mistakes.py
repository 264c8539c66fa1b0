"""Test that each user mistake prints the first line that the page about errors has."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from airflow_merge_provider.jobs.run.entry import build_failure
from airflow_merge_provider.operators.scd2 import Scd2Operator
from airflow_merge_provider.operators.upsert import UpsertOperator
from tests.conformance.lean import lean_session

PAGE = Path(__file__).parents[3] / "docs/errors.md"
ROWS = pa.table({"id": [1, 2, 3], "mail": ["a", "b", "c"], "amount": [1, 2, 3]})
PERSONS = pa.table({"_id": ["p1", "p2"], "mail": ["a", "b"]})
BAD_KEYS = pa.table({"id": pa.array([None, 7, 7, None], pa.int64()), "mail": ["a", "b", "c", "d"]})


class Lake:
    """A warehouse with some tables, and jobs over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.target = spark, folder, "target"
        tables = {
            "rows": ROWS,
            "less": ROWS.drop_columns(["amount"]),
            "persons": PERSONS,
            "bad": BAD_KEYS,
            "twice": BAD_KEYS.slice(1, 2),
            "empty": ROWS.slice(0, 0),
            "other": pa.table({"id": [3], "mail": ["other"]}),
        }
        for name, rows in tables.items():
            write_deltalake(str(folder / name), rows)

    def run_job(self, job: str, **config: Any) -> dict[str, Any]:
        request_fields = {name: config.pop(name) for name in ("max_change_ratio",) if name in config}
        request = JobRequest(
            job=job,
            config={"target": self.target, **config},
            run=RunToken(dag_id="d", run_id=f"{config}", task_id="t"),
            warehouse=str(self.folder),
            started_at=1,
            **request_fields,
        )
        module = importlib.import_module(f"airflow_merge_provider.jobs.{job}.job")
        report: dict[str, Any] = module.run(self.spark, request, Progress(out=str)).as_json()
        return report

    def run_upsert(self, source: str = "rows", **config: Any) -> dict[str, Any]:
        return self.run_job(
            "merge_load", **{"strategy": "upsert", "source": source, "primary_key": "id", **config}
        )

    def run_merge(self, *rules: list[Any], **config: Any) -> dict[str, Any]:
        return self.run_job("merge_source", datasets=["persons p"], equality=list(rules), **config)

    def run_join(self, **config: Any) -> dict[str, Any]:
        defaults = {"inputs": {"a": "rows", "b": "rows"}, "join_keys": "a.id = b.id", "required_inputs": "a"}
        return self.run_job("joiner", **{**defaults, **config})


def _lose_a_column(lake: Lake) -> Any:
    lake.run_upsert()
    return lake.run_upsert("less")


def _alter_target(change: str) -> Callable[[Lake], Any]:
    def load_again(lake: Lake) -> Any:
        lake.run_upsert("less")
        lake.spark.sql(f"ALTER TABLE delta.`{lake.folder / lake.target}` {change}")
        return lake.run_upsert("other")

    return load_again


def _write_two_at_once(_: Lake) -> Any:
    with DAG("d", schedule=None) as dag:
        for name in "ab":
            UpsertOperator(task_id=name, source=f"s{name}", target="t", primary_key="id")
    dag.resolve_template_files()  # type: ignore[no-untyped-call]


def _load_pipes(content: str, suffix: str) -> Callable[[Lake], Any]:
    def load_pipe(lake: Lake) -> Any:
        from airflow_merge_provider.cli.run_file import read_run_file

        path = lake.folder / f"pipe{suffix}"
        path.write_text(content, encoding="utf-8")
        return read_run_file(str(path), str(lake.folder)).check_config(needs_target=True)

    return load_pipe


_ALIASES = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)
MISTAKES: dict[str, Callable[[Lake], Any]] = {
    "a rule names a column that does not exist": lambda lake: lake.run_merge(["eq", "p.mial", "p.mail"]),
    "a rule that links nothing (a warning)": lambda lake: lake.run_merge(["eq", "p.mail", "p.mail"]),
    "a key that does not exist": lambda lake: lake.run_upsert(primary_key="idd"),
    "a flag of deletions that does not exist": lambda lake: lake.run_upsert(hard_delete="amonut"),
    "a column of an aggregate that does not exist": lambda lake: lake.run_job(
        "merge_engine", source="rows", primary_key=["id"], merge_engine="aggregation",
        options={"fields.amuont.aggregate-function": "sum"},
    ),
    "an order that does not exist": lambda lake: lake.run_job(
        "merge_engine", source="rows", primary_key=["id"], order_by=["amuont"]
    ),
    "a field of a join that does not exist": lambda lake: lake.run_join(selected_fields="a.id, b.maill"),
    "a condition on a column that does not exist": lambda lake: lake.run_upsert(source_filter="amuont > 1"),
    "a connection that does not exist": lambda _: SparkJobHook("spark_prod")._find_connection(),
    "`spark.master` in the Spark settings": lambda _: UpsertOperator(
        task_id="load", source="s", target="t", primary_key="id", conf={"spark.master": "yarn"}
    ),
    "a column disappears from the source": _lose_a_column,
    "a row violates a constraint of the target": _alter_target(
        "ADD CONSTRAINT short_mail CHECK (mail IS NULL OR length(mail) < 3)"
    ),
    "a target that allows only appended rows": _alter_target(
        "SET TBLPROPERTIES ('delta.appendOnly' = 'true')"
    ),
    "two tasks of a DAG write one target": _write_two_at_once,
    "a source without rows (a warning)": lambda lake: lake.run_upsert("empty"),
    "`max_change_ratio` in percent": lambda _: UpsertOperator(
        task_id="load", source="s", target="t", primary_key="id", max_change_ratio=20
    ),
    "`version` 1 of a merge source (a warning)": lambda lake: lake.run_merge(version=1),
    "an argument is misspelt": lambda _: Scd2Operator(
        task_id="load", source="s", target="t", natural_keys="id"
    ),
    "a NULL in the key": lambda lake: lake.run_upsert("bad"),
    "several rows of one key": lambda lake: lake.run_upsert("twice"),
    "a catalog that does not exist": lambda lake: lake.run_upsert("prod.crm.customers"),
    "a dataset that does not exist": lambda lake: lake.run_upsert("rowz"),
    "a key twice in a pipe file": _load_pipes('{"_id": "p", "_id": "q"}', ".json"),
    "a YAML file of aliases of aliases": _load_pipes(_ALIASES, ".yaml"),
    "a file that does not exist, on the command line": lambda _: cli.main(["check", "/lake/pipe.json"]),
}  # fmt: skip


def read_page() -> dict[str, str]:
    """Return the first line of each mistake from the page."""
    table = (
        PAGE.read_text(encoding="utf-8").partition("## Mistakes and what they print")[2].partition("\n## ")[0]
    )
    rows = (line.strip("| ").split(" | ", 1) for line in table.splitlines() if line.startswith("| "))
    return {mistake: line.strip() for mistake, line in rows if mistake not in {"mistake", "---"}}


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return one warehouse for all mistakes; each has a target of its own."""
    return Lake(lean_session(spark), tmp_path_factory.mktemp("lake"))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_prints_what_the_page_says(
    mistake: Any, lake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error writes nothing and starts with the line of the page; a warning is the first in its report."""
    lake.target = f"target_{list(MISTAKES).index(mistake)}"

    line = _find_first_line(MISTAKES[mistake], lake, capsys)

    assert line.replace(str(lake.folder), "/lake") == read_page().get(mistake)


def _find_first_line(make: Callable[[Lake], Any], lake: Lake, capsys: Any) -> str:
    try:
        report = make(lake)
    except Exception as error:  # noqa: BLE001 - what a task would report
        return build_failure(error).message.splitlines()[0]
    if isinstance(report, int):
        return str(capsys.readouterr().err).removeprefix("error: ").splitlines()[0]
    return str(report["warnings"][0])


def test_the_page_has_no_other_mistakes() -> None:
    """The page lists only mistakes that are tested here."""
    assert set(read_page()) == set(MISTAKES)
