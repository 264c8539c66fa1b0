"""Tests of the cost of importing an operator in a DAG file: CPU time, heavy libraries, files and network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("pyspark", "delta", "deltalake", "pandas", "numpy", "pyarrow", "scipy", "fastapi", "openlineage")
# In CPU seconds.
COST_MAX = 0.4
ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("operators", "sensors", "triggers", "links")
    for path in sorted((ROOT / "airflow_merge_provider" / folder).glob("[a-z]*.py"))
]
MODULES += [
    "airflow_merge_provider.decorators",
    "airflow_merge_provider.task_groups",
    "airflow_merge_provider.pipes",
    "airflow_merge_provider.plugins.merge",
]
# Airflow is imported once. Each module is then imported in a forked process, and in a second one if that took
# long, because of other processes perhaps; the better time counts.
_COST = """
import json, os, sys, time
import airflow.sdk
from airflow.sdk import BaseOperator

def import_cost(module):
    before, start = set(sys.modules), time.process_time()
    __import__(module)
    cost = time.process_time() - start
    return {"cost": cost, "loaded": sorted({name.partition(".")[0] for name in set(sys.modules) - before})}

def in_a_child(module):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as answer:
            json.dump(import_cost(module), answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    os.wait()
    return json.loads(found)

def measure(module, cost_max):
    first = in_a_child(module)
    return [first] if first["cost"] < cost_max else [first, in_a_child(module)]

print(json.dumps({module: measure(module, float(sys.argv[1])) for module in sys.argv[2:]}))
"""
# Imports read their own files: only what a constructor does after all imports counts.
_QUIET = """
import json, sys
from airflow.sdk import DAG
from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.merge_source import MergeSourceOperator

def make(number):
    with DAG(f"dag_{number}", schedule=dataset_asset("lake.crm.customers")) as dag:
        MergeSourceOperator(
            task_id="merge", target="golden", datasets=["crm c", "/lake/erp e", "lake.crm.web w"],
            equality=[["eq", "c.email", ["lower", "e.mail"]], ["eq", "c.id", "w.crm_id"]],
        )
    return dag

make(0)
seen = []
watched = ("open", "os.listdir", "os.scandir", "socket.", "subprocess.", "os.exec", "os.fork", "os.posix")
sys.addaudithook(lambda event, args: seen.append([event, str(args)]) if event.startswith(watched) else None)
make(1)
print(json.dumps(seen))
"""


def run_code(code: str, home: Path, *arguments: str) -> Any:
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Measure the import of every module, and of a heavy library."""
    import_costs: dict[str, Any] = run_code(
        _COST, tmp_path_factory.mktemp("home"), str(COST_MAX), *MODULES, "pandas"
    )
    return import_costs


@pytest.mark.parametrize("module", MODULES)
def test_an_import_is_cheap_and_loads_nothing_heavy(module: Any, costs: Any) -> None:
    """An import takes at most 0.4 CPU seconds more than Airflow itself and loads no heavy library."""
    for measurement in costs[module]:
        assert set(measurement["loaded"]) & set(HEAVY) == set()
    assert min(measurement["cost"] for measurement in costs[module]) < COST_MAX


def test_a_heavy_import_is_noticed(costs: Any) -> None:
    """The measurement detects a module that loads one of the heavy libraries."""
    assert {"pandas", "numpy"} <= set(costs["pandas"][0]["loaded"])


def test_making_an_operator_touches_no_file_and_no_network(tmp_path: Path) -> None:
    """The constructor of an operator opens no file and no network connection."""
    assert run_code(_QUIET, tmp_path) == []
