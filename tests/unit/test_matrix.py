"""Tests of the choice of versions that make test-matrix tests together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.matrix.__main__ import main
from tests.matrix.combinations import Combination, find_java_homes, find_python, list_combinations


def test_every_version_is_tested_with_the_first_ones_of_the_others() -> None:
    """The tests without Spark run once for each Python."""
    combinations = list(list_combinations(["3.11", "3.12"], ["17", "21"], ["4.2", "4.1"]))

    assert combinations == [
        Combination("3.11", "17", "4.2", quick=True),
        Combination("3.12", "17", "4.2", quick=True),
        Combination("3.11", "17", "4.1"),
        Combination("3.11", "21", "4.2"),
    ]
    assert len({combination.folder_name for combination in combinations}) == 3


def test_a_link_to_a_python_that_is_not_installed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first program that is a Python of the version is found; another version is none."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    broken, other, good = (tmp_path / name for name in ("broken", "other", "good"))
    for folder, answer in ((broken, 127), (other, 1), (good, 0)):
        folder.mkdir()
        program = folder / f"python{version}"
        program.write_text(f"#!/bin/sh\nexit {answer}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken}:{other}:{good}")

    assert find_python(version) == str(good / f"python{version}")
    assert find_python("2.7") is None


def test_a_missing_version_is_a_success_only_at_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build machine that lacks a version has tested nothing with it, so its run fails."""
    missing = ["--python", "2.7", "--java", "17", "--spark", "4.2"]
    monkeypatch.delenv("CI", raising=False)
    assert main(missing) == 0
    assert (
        "| Python 2.7 is not on this machine | Python 2.7 is not on this machine |" in capsys.readouterr().out
    )

    monkeypatch.setenv("CI", "true")

    assert main(missing) == 1


def test_the_java_of_the_tests_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME counts before the folders of the distribution."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="99.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    homes = find_java_homes()

    assert next(iter(homes.items())) == ("99", str(tmp_path))
