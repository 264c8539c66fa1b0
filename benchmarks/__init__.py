"""Measure jobs and operators against other solutions; some modules use the demo in the folder of DAGs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "dags"))
