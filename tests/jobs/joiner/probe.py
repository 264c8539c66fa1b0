"""The joiner's job in a Spark process of its own, which stops at a named moment and waits to be killed.

``MERGE_PROBE`` names the function of ``Folder`` at whose call it stops.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from airflow_merge_provider.jobs.joiner.folder import Folder


def _wait_forever(*_: Any) -> None:
    print("waiting", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    from airflow_merge_provider.jobs.run.entry import main

    if moment := os.environ.get("MERGE_PROBE"):
        setattr(Folder, moment, _wait_forever)
    sys.exit(main(sys.argv[1:]))
