"""Choose JVM options that make a JVM for a single job start fast: C1 compiler, collector, class archive.

A short run spends most of its time loading, verifying and compiling classes. The archive of loaded classes
(class data sharing) is created once per machine, Java and class path, by ``local_spark.archive_recording``.
Without it runs are slower, with the same results.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from airflow_merge_provider.spark_process.jvm.jars import cache_folder

OPTIONS_SETTING = "spark.driver.extraJavaOptions"
# With only the first compiler, a JVM reaches its full speed after one run instead of twenty; it reserves a
# fifth of the usual code cache, which long plans fill.
COMPILER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# A JVM ignores an archive that does not match; these options suppress its warning.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def one_shot(conf: Mapping[str, str], archive: Path) -> dict[str, str]:
    """Return the settings with the JVM options for one job on this machine; options in ``conf`` win."""
    options = [COMPILER_OPTIONS]
    if archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", _SILENT]
    return _prepend_options(conf, [*_choose_collector(conf), *options])


def long_lived(conf: Mapping[str, str], archive: Path | None = None) -> dict[str, str]:
    """Return the settings with the JVM options for a long-lived server, which ends if it runs out of memory.

    After an ``OutOfMemoryError`` any thread of the JVM may be missing, so that clients would wait for ever.
    """
    options = [*_choose_collector(conf), "-XX:+ExitOnOutOfMemoryError"]
    if archive is not None and archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", _SILENT]
    return _prepend_options(conf, options)


def add_recording_settings(conf: Mapping[str, str], archive: Path) -> dict[str, str]:
    """Return the settings with which a JVM writes its loaded classes to ``archive`` when it exits."""
    return _prepend_options(conf, [*_choose_collector(conf), f"-XX:ArchiveClassesAtExit={archive}", _SILENT])


def archive_file(java: Path, spark: Path, jars: Sequence[str]) -> Path:
    """Return the path of the archive for a Java, a Spark and the jars on its class path."""
    parts = [str(java), read_java_release(java), str(spark.resolve()), *jars]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / f"{key}.jsa"


def read_java_release(java: Path) -> str:
    """Return the text that identifies the version of a Java installation; empty if it has no such file."""
    release = java.parent.parent / "release"
    return release.read_text(errors="replace") if release.is_file() else ""


@contextmanager
def replace_when_complete(archive: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and move the file there to ``archive`` at the end."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may create the same archive at the same time.
    part = archive.with_suffix(f".{os.getpid()}.part")
    try:
        yield part
        if part.is_file():
            part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


def _choose_collector(conf: Mapping[str, str]) -> list[str]:
    """Return the collector option, unless the user chose one: a JVM does not start with two collectors."""
    match = re.search(r"-XX:\+Use\w+GC", conf.get(OPTIONS_SETTING, ""))
    return [] if match else ["-XX:+UseParallelGC"]


def _prepend_options(conf: Mapping[str, str], options: Sequence[str]) -> dict[str, str]:
    return {**conf, OPTIONS_SETTING: " ".join([*options, conf.get(OPTIONS_SETTING, "")]).strip()}
