"""Measure the time, memory and number of Spark jobs of several methods for one task."""

from __future__ import annotations

import json
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from airflow_merge_provider.core.spark_conf import session_conf
from airflow_merge_provider.jobs.spark.session import local_session
from airflow_merge_provider.spark_process.jvm.class_archive import long_lived
from airflow_merge_provider.spark_process.launch import list_jars
from benchmarks.page import update_page

OUT = Path(__file__).parent / "out"
_SETTLED = 1.0


@dataclass
class Candidate:
    """One method for the task: its name, its function, and the measurements of each round."""

    name: str
    run: Callable[[], Mapping[str, Any]]
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def summarize_rounds(self) -> dict[str, Any]:
        """Return min and median of the rounds after the first, which is a warm-up."""
        warm = self.rounds[1:]
        seconds = [measurement["seconds"] for measurement in warm]
        return {
            "candidate": self.name,
            "first": round(self.rounds[0]["seconds"], 2),
            "min": round(min(seconds), 2),
            "median": round(statistics.median(seconds), 2),
            "rounds": len(warm),
            **{key: value for key, value in warm[-1].items() if key != "seconds"},
            "cpu": round(statistics.median(measurement["cpu"] for measurement in warm), 2),
            "peak_mib": max(measurement["peak_mib"] for measurement in self.rounds),
        }


def warm_session(**conf: str) -> SparkSession:
    """Start Spark as the Connect server on this machine does: long-lived, with the settings of a job."""
    return local_session(long_lived(session_conf(local=True, jars=list_jars(conf), user=conf)))


def run_in_turns(candidates: list[Candidate], rounds: int) -> None:
    """Run every method once per round, one after the other, so that slow phases affect all of them."""
    for number in range(rounds + 1):
        for candidate in candidates:
            candidate.rounds.append(_measure_candidate(candidate))
            print(f"round {number} {candidate.name}: {candidate.rounds[-1]['seconds']:.2f} s", flush=True)


def _measure_candidate(candidate: Candidate) -> dict[str, Any]:
    with _watch_memory() as peak:
        cpu, start = _read_cpu(), time.perf_counter()
        figures = dict(candidate.run())
        seconds, used = time.perf_counter() - start, _read_cpu() - cpu
    return {"seconds": seconds, "cpu": used, **figures, "peak_mib": peak[0] >> 20}


@contextmanager
def _watch_memory() -> Iterator[list[int]]:
    """Record the resident memory of this process and all its children."""
    peak, stop = [0], threading.Event()

    def watch_family() -> None:
        while not stop.wait(0.2):
            # A newly forked process still reports its parent's memory.
            settled = [
                process for process in _list_processes() if time.time() - process.create_time() > _SETTLED
            ]
            with suppress(psutil.Error):
                peak[0] = max(peak[0], sum(process.memory_info().rss for process in settled))

    thread = threading.Thread(target=watch_family, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _read_cpu() -> float:
    total = 0.0
    for process in _list_processes():
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _list_processes() -> list[psutil.Process]:
    me = psutil.Process()
    processes = []
    for process in (me, *me.children(recursive=True)):
        try:
            process.memory_info()
            processes.append(process)
        except psutil.Error:
            continue
    return processes


def measure_size(folder: Path) -> int:
    """Return the total size of all data files below a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def write_results(
    benchmark: str, measured: str, candidates: list[Candidate], ratios: Mapping[str, float], facts: Any
) -> Path:
    """Write the figures as JSON, the medians as a bar chart, and both into the page; return the JSON file."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and needed only here

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    OUT.mkdir(exist_ok=True)
    figures = [candidate.summarize_rounds() for candidate in candidates]
    file = OUT / f"{benchmark}-{re.sub(r'[^a-z0-9]+', '-', measured.lower())}.json"
    content = {
        "benchmark": benchmark, "measured": measured, "cores": len(os.sched_getaffinity(0)),
        "candidates": figures, "ratios": dict(ratios), "facts": facts,
    }  # fmt: skip
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    figure, axes = plt.subplots(figsize=(7, 0.6 + 0.5 * len(candidates)), layout="constrained")
    medians = {summary["candidate"]: summary["median"] for summary in figures}
    bars = axes.barh(list(medians), list(medians.values()), color="#2a78b8")
    axes.bar_label(bars, fmt="%.1f s", padding=4)
    axes.set(xlabel="seconds (median of warm rounds)", title=f"{benchmark}, {measured}")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file.with_suffix(".png"), dpi=120)
    update_page(benchmark, measured, medians, ratios)
    return file
