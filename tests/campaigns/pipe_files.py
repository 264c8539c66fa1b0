"""Damaged pipe files: each gives DAGs that run, or DAGs that show the error."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import yaml

from airflow_merge_provider.pipes import load_pipes
from tests.campaigns.configurations import ODD, SECONDS_MAX, Tally, change_value, list_known

NAME = "pipe files"
_SCRAPS = (
    "{", "}", "[", "]", '"', "'", ":", ",", "- ", "&a ", "*a", "<<: ", "!!set ", "? ", "\n", "\t", "  ", "#",
    "|", "null", "2024-01-01", "1e999", "\x00", "é", "\u2028", "{{ x }}",
)  # fmt: skip


def try_pipe_files(folder: Path, seed: int, count: int, tally: Tally) -> None:
    """Try a number of files in a new folder; the same seed creates the same ones."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    folder.mkdir()
    for number in range(count):
        for old_file in folder.iterdir():
            old_file.unlink()
        file = folder / rng.choice(("pipe.json", "pipe.yaml"))
        content = build_file(rng, file.suffix)
        file.write_bytes(content)
        began = time.process_time()
        try:
            dags = load_pipes(folder, operator_args={"warehouse": "/lake"})
            is_broken = any("broken" in dag.tags for dag in dags.values())
            (tally.refused if is_broken else tally.accepted)[NAME] += 1
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            tally.failed.append(f"{NAME} {seed}/{number}: {error!r} of {content!r}")
        if time.process_time() - began > SECONDS_MAX:
            tally.failed.append(f"{NAME} {seed}/{number}: takes long: {content!r}")


def build_file(rng: random.Random, suffix: str) -> bytes:
    """Return a file with one or more pipes, changed as objects and as text."""
    pipes = [_build_pipe(rng, number) for number in range(rng.choice((1, 1, 2)))]
    content: Any = pipes if len(pipes) > 1 else pipes[0]
    try:
        text = json.dumps(content) if suffix == ".json" else yaml.safe_dump(content, allow_unicode=True)
    except (TypeError, ValueError, yaml.YAMLError):
        text = repr(content)
    for _ in range(rng.choice((0, 0, 1, 3))):
        begin = rng.randrange(len(text) + 1)
        end = min(len(text), begin + rng.choice((0, 1, 1, 8, 80)))
        text = text[:begin] + rng.choice((*_SCRAPS, text[begin:end] * 2)) + text[end:]
    return text.encode("utf-8", rng.choice(("surrogatepass", "replace")))


def _build_pipe(rng: random.Random, number: int) -> Any:
    pipe: Any = {"_id": f"p{number}", "source": dict(rng.choice(list_known("merge_source")))}
    if rng.random() < 0.3:
        pipe["pump"] = rng.choice(({"schedule_interval": 60}, {"cron_expression": "0 * * * *"}))
    if rng.random() < 0.2:
        pipe["sink"] = {"dataset": "other"}
    return change_value(rng, pipe, rng.choice(ODD)) if rng.random() < 0.4 else pipe
