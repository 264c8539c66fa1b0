"""Tests that catalog tables are refused where their catalog ends with Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider import before_spark
from airflow_merge_provider.cli.main import main
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.hooks.spark_job import SparkJobHook

HIVE = {"spark.sql.catalogImplementation": "hive"}
UNITY = "io.unitycatalog.spark.UCSingleCatalog"
DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
EXPECT = {"known": {"foreign_key": {"columns": "id", "dataset": "db.t", "references": "id"}}}
MERGE: dict[str, Any] = {"datasets": ["a a", "b b"], "target": "g", "equality": [["eq", "a.x", "b.x"]]}
JOIN: dict[str, Any] = {"inputs": {"a": "a", "b": "b"}, "join_keys": {"a": "id", "b": "id"}, "target": "j"}
# Every argument that names a dataset, by job.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "datasets[1]": ("merge_source", {**MERGE, "datasets": ["a a", "db.t b"]}),
    "overrides": ("merge_source", MERGE),
    "metrics": ("merge_source", MERGE),
    "inputs.a": ("joiner", {**JOIN, "inputs": {"a": "db.t", "b": "b"}}),
    "unmatched": ("joiner", {**JOIN, "join_type": "leftouterjoin"}),
    "changelog": ("merge_engine", {"source": "s", "target": "t", "primary_key": "id"}),
    "source": ("merge_load", {"strategy": "upsert", "target": "t", "primary_key": "id"}),
    "target": ("merge_load", {"strategy": "upsert", "source": "s", "primary_key": "id"}),
    "expect": ("merge_load", {"strategy": "upsert", "source": "s", "target": "t", "primary_key": "id"}),
    "undo": ("undo", {"target": "db.t"}),
}  # fmt: skip


def build_request(job: str, config: dict[str, Any], folder: Path) -> JobRequest:
    token = RunToken(dag_id="d", run_id="r", task_id="t")
    return JobRequest(job=job, config=config, run=token, warehouse=str(folder), started_at=7)


def find_result(request: JobRequest, **options: Any) -> Any:
    arguments: dict[str, Any] = {"conf": {}, "is_local": True, "on_line": str, **options}
    return before_spark.find_result(request, **arguments)


@pytest.mark.parametrize("argument", CONFIGS)
def test_every_argument_is_checked_before_spark(argument: str, tmp_path: Path) -> None:
    """The error names the argument, the table and the ways out."""
    job, raw = CONFIGS[argument]
    value = EXPECT if argument == "expect" else "db.t"
    config = raw if argument in {"datasets[1]", "inputs.a", "undo"} else {**raw, argument: value}
    path = {"undo": "target", "expect": "expect.known.foreign_key.dataset"}.get(argument, argument)

    with pytest.raises(ConfigError) as refused:
        find_result(build_request(job, config, tmp_path))

    assert str(refused.value).startswith(
        f"{path}: 'db.t' is a catalog table, and the catalog of Spark on this"
    )
    for remedy in ("a location", "metastore", "Connect server"):
        assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("name", "conf", "is_kept"),
    [
        ("db.t", {}, False),
        ("db.t", {"spark.sql.warehouse.dir": "/lake"}, False),
        ("db.t", HIVE, False),
        ("db.t", {**HIVE, "spark.hadoop.hive.metastore.uris": "thrift://m:9083"}, True),
        ("db.t", {**HIVE, "spark.hive.metastore.uris": "thrift://m:9083"}, True),
        ("db.t", {**HIVE, "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:mysql://m/db"}, True),
        ("db.t", {"spark.hadoop.hive.metastore.uris": "thrift://m:9083"}, False),
        ("db.t", {"spark.sql.catalog.spark_catalog": DELTA}, False),
        ("db.t", {"spark.sql.catalog.spark_catalog": UNITY}, True),
        ("spark_catalog.db.t", {"spark.sql.catalog.spark_catalog": UNITY}, True),
        ("lake.db.t", {}, False),
        ("lake.db.t", {"spark.sql.catalog.lake": UNITY}, True),
        ("LAKE.db.t", {"spark.sql.catalog.lake": UNITY}, False),
        ("lake.t", {"spark.sql.catalog.lake": UNITY}, True),
        ("db.t", {"spark.sql.catalog.lake": "x.Y", "spark.sql.defaultCatalog": "lake"}, True),
        ("spark_catalog.db.t", {"spark.sql.catalog.lake": "x.Y", "spark.sql.defaultCatalog": "lake"}, False),
    ],
)  # fmt: skip
def test_a_catalog_that_keeps_tables_is_accepted(
    name: str, conf: dict[str, str], is_kept: bool, tmp_path: Path
) -> None:
    """A metastore, or a catalog of its own, keeps tables; a warehouse folder alone does not."""
    request = build_request("undo", {"target": name}, tmp_path)

    if is_kept:
        assert find_result(request, conf=conf) is None
    else:
        with pytest.raises(ConfigError, match="is a catalog table"):
            find_result(request, conf=conf)


def test_settings_of_this_machine_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metastore may be in spark-defaults.conf and hive-site.xml."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    request = build_request("undo", {"target": "db.t"}, tmp_path)
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.catalogImplementation hive\n")
    with pytest.raises(ConfigError, match="is a catalog table"):
        find_result(request)

    (tmp_path / "hive-site.xml").write_text("<configuration/>")

    assert find_result(request) is None


def test_spark_elsewhere_has_its_own_catalog(tmp_path: Path) -> None:
    """A cluster and a Spark Connect server may have a metastore that this machine does not know."""
    assert find_result(build_request("undo", {"target": "db.t"}, tmp_path), is_local=False) is None


@pytest.mark.parametrize("connection", [None, {"conn_type": "spark", "host": "local[2]"}])
def test_an_operator_does_not_start_spark(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local master of a connection has no metastore, either."""
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    with pytest.raises(ConfigError, match=r"target: 'db.t' is a catalog table"):
        SparkJobHook().submit(build_request("undo", {"target": "db.t"}, tmp_path))


def test_the_command_line_refuses_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``run`` and ``plan`` refuse the table; ``check``, which does not know where the run will be, warns."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"job": "merge_load", "config": {**CONFIGS["target"][1], "target": "db.t"}}))
    common = ["--warehouse", str(tmp_path)]

    for command in ("run", "plan"):
        assert main([command, str(file), *common]) != 0
        assert "target: 'db.t' is a catalog table" in capsys.readouterr().err
    assert main(["check", str(file), *common]) == 0
    assert "target: 'db.t' is a catalog table" in capsys.readouterr().err
