"""Tests of the cost of fifty pipes in a DAG file, compared with as many Airflow DAGs of two tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_COST = """
import json, sys, time
from airflow.sdk import DAG, Asset, BaseOperator, BaseSensorOperator
from airflow_merge_provider.pipes import load_pipes

class Wait(BaseSensorOperator):
    template_fields = ("datasets", "ignore", "warehouse")
    def __init__(self, *, datasets, ignore, warehouse, **kwargs):
        super().__init__(**kwargs)
        self.datasets, self.ignore, self.warehouse = datasets, ignore, warehouse
        self.add_inlets([Asset(name, uri="merge://warehouse/" + name) for name in datasets])

class Merge(BaseOperator):
    template_fields = ("target", "datasets", "equality")
    def __init__(self, *, target, datasets, equality, **kwargs):
        super().__init__(**kwargs)
        self.target, self.datasets, self.equality = target, datasets, equality
        self.add_inlets([Asset(name, uri="merge://warehouse/" + name) for name in ("A", "B")])
        self.add_outlets([Asset(target, uri="merge://warehouse/" + target)])

def plain(number):
    with DAG(f"plain_{number}", schedule=Asset("A") | Asset("B"), doc_md="x", tags=["a"]) as dag:
        merge = Merge(task_id="merge", target="golden", datasets=["A a", "B b"], equality=[])
        Wait(task_id="wait", datasets=["A", "B"], ignore=True, warehouse=None) >> merge
    return dag

plain(0)
load_pipes(sys.argv[1])
own, pipes = [], []
# The shortest of some rounds: beside other processes, most rounds share their caches.
for round_number in range(20):
    if round_number >= 3 and min(pipes) < 3 * min(own):
        break
    start = time.process_time()
    for dag_number in range(50):
        plain(dag_number)
    middle = time.process_time()
    assert len(load_pipes(sys.argv[1])) == 50
    own.append(middle - start)
    pipes.append(time.process_time() - middle)
print(json.dumps([min(own), min(pipes)]))
"""


def test_fifty_pipes_cost_next_to_nothing(tmp_path: Path) -> None:
    """Reading, checking and building fifty pipes costs less than three times the same DAGs without checks."""
    pipes, home = tmp_path / "pipes", tmp_path / "home"
    pipes.mkdir()
    for number in range(50):
        source = {
            "type": "merge",
            "version": 2,
            "datasets": ["A a", "B b"],
            "equality": [["eq", "a.x", ["lower", "b.x"]]],
            "supports_signalling": True,
        }
        pipe = {"_id": f"pipe_{number}", "source": source, "pump": {"schedule_interval": 600}}
        (pipes / f"{number}.json").write_text(json.dumps(pipe))

    process = subprocess.run(
        [sys.executable, "-c", _COST, str(pipes)],
        env={**os.environ, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr
    of_airflow, of_pipes = json.loads(process.stdout.splitlines()[-1])
    assert of_pipes < 3 * of_airflow
