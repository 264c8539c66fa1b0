"""The script that spark-submit runs, in a separate folder because that folder comes first on ``sys.path``."""

from __future__ import annotations

import sys

from airflow_merge_provider.jobs.run.entry import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
