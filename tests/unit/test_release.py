"""Tests of what a release is built from: its metadata, its checks, and the checks of each commit."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hatch_build import build_project_urls, make_links_absolute
from tests.release.readiness import LOG_STORE, list_problems
from tests.unit.test_docs import MAKEFILE, ROOT

URL = "https://example.org/project"
STEM = "airflow_merge_provider-0.2.0"
WHEEL, SDIST = f"dist/{STEM}-py3-none-any.whl", f"dist/{STEM}.tar.gz"
METADATA = f"Name: p\nProject-URL: Source, {URL}\n\nSee [this page]({URL}/blob/v0.2.0/docs/a.md#b).\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [a\npage](docs/undo.md#plan).", f"see [a\npage]({URL}/blob/v1/docs/undo.md#plan)."),
        ("[pages](docs)", f"[pages]({URL}/tree/v1/docs)"),
        ("![p](docs/images/x.png)", f"![p]({URL}/raw/v1/docs/images/x.png)"),
        ("[a](#b) [c](https://example.org) [d](mailto:e@example.org)", None),
    ],
)
def test_links_of_the_long_description_are_absolute(text: Any, expected: Any) -> None:
    """Relative links lead to the files of the tag; addresses and anchors stay."""
    assert make_links_absolute(text, ROOT, URL, "v1") == (expected or text)


def test_project_urls_lead_to_the_tag() -> None:
    """Pages and the changelog are those of the release."""
    urls = build_project_urls(URL, "v1")

    assert urls["Repository"] == URL
    assert urls["Changelog"] == f"{URL}/blob/v1/CHANGELOG.md"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a folder with a changelog, and the distributions of version 0.2.0 in dist."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d/README.md").touch()
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 - 2026-12-01\n", encoding="utf-8")
    write_distributions(tmp_path, METADATA)
    return tmp_path


def write_distributions(folder: Path, metadata: str, *files: str) -> None:
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr(f"{STEM}.dist-info/METADATA", metadata)
        for name in files or [LOG_STORE]:
            wheel.writestr(name, "")
    with tarfile.open(folder / SDIST, "w:gz") as sdist:
        entry = tarfile.TarInfo(f"{STEM}/PKG-INFO")
        entry.size = len(metadata.encode())
        sdist.addfile(entry, io.BytesIO(metadata.encode()))


def list_problems_of(release: Path, tag: str = "v0.2.0") -> list[str]:
    return [
        problem.replace(f"{release}/", "")
        for problem in list_problems(release, release / "dist", tag, "0.2.0")
    ]


def test_a_release_whose_parts_belong_together_is_ready(release: Path) -> None:
    """Nothing is reported."""
    assert list_problems_of(release) == []


def test_a_tag_of_another_version_is_reported(release: Path) -> None:
    """The tag is the version of the package."""
    assert list_problems_of(release, tag="v0.2.1") == [
        "v0.2.1: is not the tag of version 0.2.0 (set the tag v0.2.0, or change __version__)"
    ]


def test_changes_that_are_not_in_the_changelog_are_reported(release: Path) -> None:
    """The changelog has a section of the version, and no change is left in changelog.d."""
    (release / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 - 2026-12-01\n", encoding="utf-8")
    (release / "changelog.d/order.fixed.md").touch()

    assert list_problems_of(release) == [
        "CHANGELOG.md: has no section of version 0.2.0 (run make changelog)",
        "changelog.d/order.fixed.md: is not in CHANGELOG.md (run make changelog)",
    ]


def test_distributions_of_another_version_are_reported(release: Path) -> None:
    """The folder has one wheel and one sdist, of the version."""
    (release / SDIST).rename(release / "dist/old-0.1.0.tar.gz")

    assert list_problems_of(release) == [
        f"{SDIST}: is missing, or does not belong to version 0.2.0 (run make dist)",
        "dist/old-0.1.0.tar.gz: is missing, or does not belong to version 0.2.0 (run make dist)",
    ]


def test_a_build_without_an_address_and_a_jar_is_reported(release: Path) -> None:
    """Both distributions have project URLs and no relative links, and the wheel has the log store."""
    write_distributions(release, "Name: p\n\nSee [a page](docs/a.md).\n", "another.jar")

    assert list_problems_of(release) == [
        f"{WHEEL}: does not contain {LOG_STORE} (run make dist)",
        f"{WHEEL}: has no project URLs (set REPO_URL to the address of the repository)",
        f"{WHEEL}: the long description has the relative link docs/a.md (set REPO_URL)",
        f"{SDIST}: has no project URLs (set REPO_URL to the address of the repository)",
        f"{SDIST}: the long description has the relative link docs/a.md (set REPO_URL)",
    ]


def test_a_commit_is_checked_with_the_commands_of_make_lint() -> None:
    """The hooks of pre-commit run the programs of make lint, and only correct white space besides."""
    recipe = MAKEFILE.split("\nlint:", 1)[1].split("\n\n", 1)[0]
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    entries = "\n".join(hook["entry"] for hook in repository["hooks"])
    white_space = {"trailing-whitespace-fixer", "end-of-file-fixer", "mixed-line-ending"}
    program = r"/(ruff \w+|[\w-]+)"

    assert set(re.findall(rf"\.venv/bin{program}", entries)) == white_space | set(
        re.findall(rf"\$\(BIN\){program}", recipe)
    )


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.name)
def test_workflows_run_targets_of_the_makefile(path: Any) -> None:
    """A workflow has no commands of its own: it runs make targets, and gh for the release."""
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z0-9-]+):[^#\n]*## ", MAKEFILE, re.MULTILINE))

    assert commands
    own = [command for command in commands if command.removeprefix("make ") not in targets]
    assert [command for command in own if not command.startswith("gh release create ")] == []


def test_long_tests_and_campaigns_run_each_night_with_new_seeds() -> None:
    """Nothing cancels the run of a night; a campaign whose time did not suffice for all has failed."""
    text = (ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8")
    workflow = yaml.load(text, Loader=yaml.BaseLoader)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    settings = {step["run"]: step.get("env", {}) for step in steps}

    assert workflow["on"]["schedule"]
    assert workflow["concurrency"]["cancel-in-progress"] == "false"
    assert workflow["env"] == {"MERGE_RANDOM_SEED": "${{ github.run_number }}"}
    assert {"make test-long", "make coverage", "make quick"} <= settings.keys()
    # The default profile of Hypothesis draws new examples, that of CI does not.
    assert settings["make quick"] == {"ARGS": "--hypothesis-profile=default"}
    assert settings["make campaign"]["ARGS"] == "--complete"
