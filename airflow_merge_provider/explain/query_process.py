"""Answer one query of the dataset page in a process of its own, which its parent can end.

The query is a JSON object on the standard input, the answer one on the standard output. Keys of object stores
are in the environment, as on the command line. Nothing of Airflow is imported.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, mask_trace, use_shown_rows
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.value_text import to_json_value
from airflow_merge_provider.explain import dataset_queries

LIMIT_SECONDS = 5
LIMIT_BYTES = 256 * 1024 * 1024
# A longer text is cut: a page has a few hundred of them.
_TEXT_MAX_CHARS = 2000
MEMORY_PROBLEM = "the answer takes too much memory"
# The code and the text of a problem that only the log of the server describes.
FAILED_QUERY = ("job", "the query failed: see the log of the API server")


def main() -> None:
    """Answer the query on the standard input."""
    # The parent ends this process in time; if the parent was killed, the alarm does.
    signal.alarm(2 * LIMIT_SECONDS)
    answers = os.dup(1)
    os.dup2(2, 1)
    query = json.load(sys.stdin)
    _limit_memory()
    with os.fdopen(answers, "w", encoding="utf-8") as file:
        json.dump(answer_query(query), file)


def answer_query(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``answer`` of a query, or the ``problem`` that prevents it: its code and its text.

    :param query: ``name``, ``target``, ``warehouse``, ``settings`` of section ``[merge]``, and ``arguments``.
    """
    try:
        target = dataset_queries.QueryTarget(query["target"], query["warehouse"], query["settings"])
        answer = dataset_queries.QUERIES[query["name"]](target, **query["arguments"])
    except MergeError as error:
        return {"problem": {"code": error.code, "text": _cut_texts(str(error).splitlines()[0])}}
    except MemoryError:
        return {"problem": {"code": dataset_queries.TooLargeError.code, "text": MEMORY_PROBLEM}}
    except Exception:  # noqa: BLE001 - the log of the server has the places of it; a text could have values
        with use_shown_rows(ShownRows(rows="none")):
            sys.stderr.write(mask_trace(traceback.format_exc()))
        code, text = FAILED_QUERY
        return {"problem": {"code": code, "text": text}}
    return {"answer": _cut_texts(to_json_value(answer))}


def _limit_memory() -> None:
    """Limit the memory of the query, in addition to what the imported modules take."""
    # Only Linux counts what a process may write; an import is not part of a query.
    with suppress(OSError, ValueError):
        import deltalake  # noqa: F401

        pages = int(open("/proc/self/statm", encoding="ascii").read().split()[5])  # noqa: PTH123, SIM115
        limit = pages * os.sysconf("SC_PAGE_SIZE") + LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _cut_texts(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= _TEXT_MAX_CHARS:
            return value
        return f"{value[:_TEXT_MAX_CHARS]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {_cut_texts(name): _cut_texts(item) for name, item in value.items()}
    return list(map(_cut_texts, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    main()
