"""Run the command line: ``python -m airflow_merge_provider``."""

from __future__ import annotations

import sys

from airflow_merge_provider.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
