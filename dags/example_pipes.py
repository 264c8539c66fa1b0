"""Pipes as DAGs: every file in pipes/ becomes a DAG that is started by changes of its inputs."""

from __future__ import annotations

from pathlib import Path

from airflow_merge_provider.pipes import load_pipes

dags = load_pipes(Path(__file__).parent / "pipes")

if __name__ == "__main__":
    for dag in dags.values():
        dag.test()
