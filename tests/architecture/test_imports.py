"""Tests of the import rules: core imports neither side, and the two sides do not import each other."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_merge_provider"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)


def run_python(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_contracts_are_kept() -> None:
    """import-linter finds no import that violates the layers."""
    lint = Path(sys.executable).with_name("lint-imports")

    process = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stdout


def test_no_contract_has_an_exception() -> None:
    """No contract has exceptions, because exceptions would make the rule ineffective over time."""
    assert all(
        not name.startswith("ignore_imports")
        for contract in [SETTINGS, *SETTINGS["contracts"]]
        for name in contract
    )


def test_every_folder_has_a_place() -> None:
    """The layers are exhaustive, so every new folder has to be assigned to one."""
    layers = [contract for contract in SETTINGS["contracts"] if contract["type"] == "layers"]
    assert len(layers) >= 3
    assert all(contract["exhaustive"] for contract in layers)


def test_every_module_imports_without_deprecation(tmp_path: Path) -> None:
    """No module uses an API that a coming version of its libraries removes."""
    code = f"import importlib\nfor name in {MODULES!r}: importlib.import_module(name)"
    # Airflow raises its own deprecation warnings at startup: import it first, without recording warnings.
    quiet = "import warnings\nwith warnings.catch_warnings(action='ignore'): import airflow.sdk\n"
    code = quiet + code

    process = run_python(code, "-W", "error::DeprecationWarning", AIRFLOW_HOME=str(tmp_path))

    assert process.returncode == 0, process.stderr


def test_core_loads_the_standard_library_and_pydantic_only() -> None:
    """Core imports only the standard library and pydantic.

    It works wherever Python and pydantic are installed.
    """
    core = [name for name in MODULES if name.startswith("airflow_merge_provider.core")]
    code = (
        "import sys, importlib\nbefore = set(sys.modules)\n"
        f"for name in {core!r}: importlib.import_module(name)\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(tops - set(sys.stdlib_module_names)))"
    )

    process = run_python(code)

    allowed = {"airflow_merge_provider", "pydantic", "pydantic_core", "typing_extensions", "annotated_types"}
    allowed |= {"typing_inspection", "pendulum", "dateutil", "six", "tzdata", "time_machine"}
    assert process.returncode == 0, process.stderr
    assert {name for name in process.stdout.split() if not name.startswith("_sysconfigdata")} <= allowed


def test_the_spark_side_runs_without_airflow() -> None:
    """The job modules can be imported without Airflow."""
    jobs = [name for name in MODULES if name.startswith("airflow_merge_provider.jobs")]
    code = (
        "import sys, importlib\nsys.modules['airflow'] = None\n"
        f"for name in {jobs!r}: importlib.import_module(name)\n"
    )

    process = run_python(code)

    assert process.returncode == 0, process.stderr
