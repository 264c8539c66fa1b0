"""Tests of the identity of a server: which runs share one, and which do not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.spark_process.shared.identity import (
    build_environment,
    build_spec,
    describe_memory_setting,
    is_session_setting,
)
from airflow_merge_provider.spark_process.shared.server_folder import find_base_folder, read_key
from airflow_merge_provider.spark_process.shared.settings import LocalSparkSettings
from tests.unit.spark_process.conftest import FakeMachine

KEY = b"key"


def compute_digest(conf: Any = None, **settings: Any) -> str:
    return build_spec(conf or {}, LocalSparkSettings(**settings)).compute_digest(KEY)


@pytest.mark.parametrize(
    ("name", "is_of_session"),
    [
        ("spark.sql.shuffle.partitions", True),
        ("spark.sql.ansi.enabled", True),
        ("spark.databricks.delta.snapshotPartitions", True),
        ("spark.openlineage.parentRunId", True),
        ("spark.openlineage.rootParentJobName", True),
        ("spark.openlineage.transport.url", False),
        ("spark.sql.extensions", False),
        ("spark.sql.catalog.lake", False),
        ("spark.sql.catalog.lake.uri", False),
        ("spark.sql.catalogImplementation", False),
        ("spark.sql.warehouse.dir", False),
        ("spark.sql.hive.metastore.jars", False),
        ("spark.sql.codegen.cache.maxEntries", False),
        ("spark.sql.artifact.isolation.enabled", False),
        ("spark.driver.memory", False),
        ("spark.hadoop.fs.s3a.secret.key", False),
        ("spark.jars.packages", False),
        ("spark.delta.logStore.s3a.impl", False),
        ("company.own.setting", False),
    ],
)
def test_only_known_runtime_settings_belong_to_the_session(name: Any, is_of_session: Any) -> None:
    """Whatever is not known to be a runtime setting belongs to the server."""
    assert is_session_setting(name) is is_of_session


def test_static_settings_of_spark_belong_to_the_server() -> None:
    """Spark's static SQL settings cannot be changed in a session."""
    names = (
        "spark.sql.broadcastExchange.maxThreadThreshold", "spark.sql.cache.serializer",
        "spark.sql.codegen.comments", "spark.sql.debug", "spark.sql.event.truncate.length",
        "spark.sql.defaultUrlStreamHandlerFactory.enabled", "spark.sql.filesourceTableRelationCacheSize",
        "spark.sql.globalTempDatabase", "spark.sql.hive.thriftServer.singleSession",
        "spark.sql.legacy.sessionInitWithConfigDefaults", "spark.sql.metadataCacheTTLSeconds",
        "spark.sql.queryExecutionListeners", "spark.sql.resultQueryStage.maxThreadThreshold",
        "spark.sql.shuffleExchange.maxThreadThreshold", "spark.sql.sources.disabledJdbcConnProviderList",
        "spark.sql.sources.schemaStringLengthThreshold", "spark.sql.streaming.streamingQueryListeners",
        "spark.sql.streaming.ui.enabled", "spark.sql.subquery.maxThreadThreshold",
        "spark.sql.ui.retainedExecutions",
    )  # fmt: skip
    assert [name for name in names if is_session_setting(name)] == []


def test_equal_settings_share_a_server(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the session, the idle time and variables of a task do not need another server."""
    digest = compute_digest()
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "load")
    monkeypatch.setenv("AIRFLOW_CONN_DB", "postgres://")
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "token")

    assert compute_digest({"spark.sql.ansi.enabled": "false", "spark.app.name": "a"}) == digest
    assert compute_digest({"spark.openlineage.parentRunId": "0190-a"}) == digest
    assert compute_digest(idle_seconds=1.0, warm_up=False) == digest
    assert compute_digest({"spark.driver.memory": "2g"}) == digest


def test_memory_that_spark_rejects_is_left_to_spark(machine: FakeMachine) -> None:
    """An invalid spark.driver.memory is an error of Spark, not of the count of slots."""
    assert build_spec({"spark.driver.memory": "much"}, LocalSparkSettings()).slots == 1


def test_files_of_tables_get_the_permissions_of_the_task(machine: FakeMachine) -> None:
    """Runs with another umask use another server, because the server creates the files of tables."""
    digest, previous = compute_digest(), os.umask(0o027)
    try:
        assert compute_digest() != digest
    finally:
        os.umask(previous)


def test_other_settings_need_another_server(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, cores, credentials and settings of the server need another server each."""
    digests = [
        compute_digest(),
        compute_digest(memory="4g"),
        compute_digest({"spark.driver.memory": "3g"}),
        compute_digest(cores=1),
        compute_digest(cores=3),
        compute_digest({"spark.hadoop.fs.s3a.access.key": "a"}),
        compute_digest({"spark.hadoop.fs.s3a.access.key": "b"}),
        compute_digest({"spark.sql.extensions": "a.B"}),
    ]
    for name in ("AWS_SESSION_TOKEN", "AZURE_CLIENT_ID", "GOOGLE_APPLICATION_CREDENTIALS", "https_proxy"):
        monkeypatch.setenv(name, "x")
        digests.append(compute_digest())

    assert len(set(digests)) == len(digests)


def test_another_installation_needs_another_server(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Versions are part of the identity, and so are the settings of the machine."""
    spec = build_spec({}, LocalSparkSettings())
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))

    assert {"package", "python", "java_release", "spark", "spark_jars", "delta_jars"} <= spec.facts.keys()
    for name in spec.facts:
        assert replace(spec, facts={**spec.facts, name: "other"}).compute_digest(KEY) != compute_digest()
    assert build_spec({}, LocalSparkSettings()).facts["spark_defaults"] != spec.facts["spark_defaults"]


def test_the_server_gets_only_variables_of_its_identity(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not inherit variables that are not part of its identity, such as secrets of a task."""
    for name in ("AIRFLOW_CONN_DB", "AIRFLOW_CTX_TASK_ID", "TASK_SECRET", "SPARK_CONNECT_AUTHENTICATE_TOKEN"):
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    environment = build_environment(build_spec({}, LocalSparkSettings()))

    assert "hush" not in environment.values()
    assert environment["AWS_REGION"] == "eu-west-1"
    assert {"PATH", "JAVA_HOME", "SPARK_HOME"} <= environment.keys()


def test_a_digest_needs_the_key_of_the_user(machine: FakeMachine) -> None:
    """Without the key nobody can test whether a digest is that of a guessed secret."""
    base = find_base_folder()
    key = read_key(base)

    assert read_key(base) == key
    assert len(key) == 32
    assert (base / "key").stat().st_mode & 0o777 == 0o600
    assert build_spec({}, LocalSparkSettings()).compute_digest(key) != compute_digest()


def test_the_memory_setting_is_the_one_that_counts() -> None:
    """The setting to raise is the one of the user if it is set, else Airflow's."""
    assert describe_memory_setting({}) == "[merge] local_spark_memory"
    assert describe_memory_setting({"spark.driver.memory": "3g"}) == "spark.driver.memory"
