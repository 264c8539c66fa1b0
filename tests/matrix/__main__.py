"""Run tests on each supported version of Python, Java and Spark: ``make test-matrix``.

The first versions are tested together, then every other version with the first ones of the others: the tests
that need neither Spark nor a database on each Python, and at least one job of each capability on each of all
versions. Each combination has an environment of its own in ``.matrix``, which uv creates. A version that is
not on this machine is a row of the table, and does not fail. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_merge_provider.spark_process.jvm.jars import SPARK_VERSIONS
from tests.matrix.combinations import (
    JAVA_VERSIONS,
    PYTHON_VERSIONS,
    Combination,
    find_java_homes,
    find_python,
    list_combinations,
)

ROOT = Path(__file__).parents[2]
_FOLDER = ROOT / ".matrix"
_EXTRAS = "spark,s3,azure,openlineage,examples,docs,dev"
_QUICK = ["-n", "2", "--dist", "loadfile", "-m", "not spark and not airflow and not e2e"]
# Operators in DAG runs, whose jobs are processes; every capability in one session, with an undo; and what
# some versions of Delta lack.
_OPERATORS = ("merge_source", "merge_engine", "merge_record", "joiner")
_JOBS = [
    *(f"tests/e2e/test_{name}_on_spark.py" for name in _OPERATORS),
    "tests/jobs/run/test_undo.py::test_an_undone_first_run_comes_back",
    "tests/jobs/merge_load/test_nested.py",
    "tests/jobs/merge_record/test_formats.py",
    "tests/jobs/object_store/test_runs.py",
]
# An older PySpark in the same process leaves the sockets of collected rows to the garbage collector.
_OPEN_SOCKETS = ["-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
_SUMMARY = re.compile(r"^=*\s*(\d+ [a-z].*) in [\d.]+s", re.MULTILINE)
_HEAD = (
    "| Python | Java | Spark | tests without Spark | jobs of every capability | minutes |\n"
    "|---|---|---|---|---|---|"
)
# These have the version of the combination; every other package has that of the tests.
_VARYING = re.compile(r"^(pyspark|pyspark-client)==.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Summary:
    """What the tests of one combination printed last, such as "12 passed, 1 skipped"."""

    text: str
    failed: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the combinations one after another, and print a row for each when it is done."""
    homes = find_java_homes()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=PYTHON_VERSIONS, help="such as 3.11 3.12")
    parser.add_argument("--java", nargs="+", default=JAVA_VERSIONS, help="major versions, such as 17 21")
    parser.add_argument("--spark", nargs="+", default=SPARK_VERSIONS, help="such as 4.2 4.1")
    parser.add_argument("--jobs-only", action="store_true", help="leave out the tests without Spark")
    options = parser.parse_args(arguments)
    print(_HEAD, flush=True)
    failed = False
    for combination in list_combinations(options.python, options.java, options.spark):
        start = time.monotonic()
        quick, jobs = _test_combination(combination, homes, jobs_only=options.jobs_only)
        versions = (combination.python, combination.java, combination.spark)
        minutes = f"{(time.monotonic() - start) / 60:.1f}"
        print(f"| {' | '.join((*versions, quick.text, jobs.text, minutes))} |", flush=True)
        failed |= quick.failed or jobs.failed
    return int(failed)


def _test_combination(
    combination: Combination, homes: Mapping[str, str], *, jobs_only: bool
) -> tuple[Summary, Summary]:
    """Run both kinds of tests, or say why they cannot be run."""
    python, home = find_python(combination.python), homes.get(combination.java)
    if python is None or home is None:
        name = f"Python {combination.python}" if python is None else f"Java {combination.java}"
        missing = Summary(f"{name} is not on this machine", failed="CI" in os.environ)
        return missing, missing
    if problem := _install(combination, python):
        return (Summary(f"the installation failed: {problem}", failed=True),) * 2
    skipped = Summary("-")
    quick = _run_tests(combination, home, "quick", _QUICK) if combination.quick and not jobs_only else skipped
    return quick, _run_tests(combination, home, "jobs", ["-n", "0", "-m", "not classic", *_JOBS])


def _install(combination: Combination, python: str) -> str | None:
    """Create the environment if it does not exist; if that fails, return where the output is."""
    folder = _FOLDER / combination.folder_name
    done = folder / "installed"
    if done.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    constraints = folder / "constraints.txt"
    text = _VARYING.sub("", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    own = "".join(f"{package}=={combination.spark}.*\n" for package in ("pyspark", "pyspark-client"))
    constraints.write_text(text + own, encoding="utf-8")
    environment = str(folder / "environment")
    commands = [
        ["venv", "--clear", "--python", python, environment],
        ["pip", "install", "--python", environment, "-c", str(constraints), "-e", f"{ROOT}[{_EXTRAS}]"],
    ]
    for command in commands:
        process = subprocess.run(
            ["uv", "--quiet", *command], check=False, capture_output=True, text=True, cwd=ROOT
        )
        if process.returncode:
            (folder / "install.log").write_text(process.stderr, encoding="utf-8")
            return f"see {(folder / 'install.log').relative_to(ROOT)}"
    done.touch()
    return None


def _run_tests(combination: Combination, home: str, name: str, arguments: Sequence[str]) -> Summary:
    """Run tests in the environment; their output is kept in its folder."""
    folder = _FOLDER / combination.folder_name
    log = folder / f"{name}-java-{combination.java}.log"
    binaries = folder / "environment" / "bin"
    # Runs do not use the Connect client of Spark 4.1.
    is_classic = combination.spark != SPARK_VERSIONS[0]
    environment = {
        **os.environ,
        "JAVA_HOME": home,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(binaries.parent),
        "TESTS_SPARK": "classic" if is_classic else "connect",
    }
    command = [str(binaries / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    command += _OPEN_SOCKETS if is_classic else []
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=file, stderr=file)
    # Threads of a JVM that ends may print after it.
    summaries = _SUMMARY.findall(log.read_text(encoding="utf-8"))
    text = summaries[-1] if summaries else "no summary"
    failed = process.returncode != 0
    return Summary(f"{text}, see {log.relative_to(ROOT)}" if failed else text, failed=failed)


if __name__ == "__main__":
    sys.exit(main())
