"""Random configurations, files and runs, for as long as somebody lets them run."""

from __future__ import annotations

import os

# Campaigns look for surviving processes: no run starts a shared Spark server.
os.environ["AIRFLOW__MERGE__LOCAL_SPARK"] = "process"
