"""Test connections to Kubernetes whose client is missing; tests/e2e/test_kubernetes.py runs pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.hooks import _submit
from airflow_merge_provider.hooks.spark_job import SparkJobHook


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_missing_kubernetes_client_is_named(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is submitted or written."""
    # The stock hook has this name only if the package is installed.
    monkeypatch.delattr(spark_submit, "kube_client", raising=False)
    monkeypatch.setattr(_submit, "find_java", lambda: Path("/bin/java"))
    connection = {"conn_type": "spark", "host": "k8s://https://api:6443", "extra": {"deploy-mode": mode}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    run = RunToken(dag_id="d", run_id="r", task_id="t")
    config = {"source": "/new"}
    request = JobRequest(job="merge_record", config=config, run=run, warehouse=str(tmp_path), started_at=1)

    with pytest.raises(SetupError) as error:
        SparkJobHook("cluster").submit(request)

    assert error.value.message.startswith(
        "connection 'cluster' needs the Kubernetes client: install apache-airflow-providers-cncf-kubernetes"
    )
    assert not list(tmp_path.iterdir())
