"""Check whether a release can be published: its tag, version, changelog and distributions belong together.

``make release-check`` runs ``python -m tests.release.readiness dist TAG``. The distributions must also
know the address of the repository.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

from airflow_merge_provider import __version__

ROOT = Path(__file__).parents[2]
LOG_STORE = "airflow_merge_provider/spark_process/jvm/log_store/log_store.jar"
_RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def list_problems(root: Path, dist: Path, tag: str, version: str) -> Iterator[str]:
    """Yield what keeps a release from being published, as ``<path>: <what is wrong> (<what to do>)``.

    :param root: the folder with the changelog.
    :param dist: the folder with the distributions.
    :param tag: the tag of the release.
    :param version: the version of the package.
    """
    if tag != f"v{version}":
        yield f"{tag}: is not the tag of version {version} (set the tag v{version}, or change __version__)"
    yield from check_changelog(root, version)
    stem = f"airflow_merge_provider-{version}"
    wheel, sdist = dist / f"{stem}-py3-none-any.whl", dist / f"{stem}.tar.gz"
    for path in sorted(set(dist.iterdir()) ^ {wheel, sdist}):
        yield f"{path}: is missing, or does not belong to version {version} (run make dist)"
    if wheel.is_file():
        yield from check_wheel(wheel)
    if sdist.is_file():
        with tarfile.open(sdist) as archive:
            text = archive.extractfile(f"{stem}/PKG-INFO")
            yield from check_metadata(sdist, "" if text is None else text.read().decode())


def check_changelog(root: Path, version: str) -> Iterator[str]:
    """Yield the problems of the changelog: no section of the version, or changes that are not in it."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        yield f"CHANGELOG.md: has no section of version {version} (run make changelog)"
    for path in sorted((root / "changelog.d").glob("*.*.md")):
        yield f"changelog.d/{path.name}: is not in CHANGELOG.md (run make changelog)"


def check_wheel(wheel: Path) -> Iterator[str]:
    """Yield the problems of a wheel: no log store, and those of its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if LOG_STORE not in names:
            yield f"{wheel}: does not contain {LOG_STORE} (run make dist)"
        (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        yield from check_metadata(wheel, archive.read(name).decode())


def check_metadata(path: Path, text: str) -> Iterator[str]:
    """Yield the problems of the metadata of a distribution: no project URLs, and relative links."""
    metadata: Message = Parser().parsestr(text)
    if not metadata.get_all("Project-URL"):
        yield f"{path}: has no project URLs (set REPO_URL to the address of the repository)"
    links = _RELATIVE_LINK.findall(str(metadata.get_payload()))
    if links:
        yield f"{path}: the long description has the relative link {links[0]} (set REPO_URL)"


def main(dist: str, tag: str) -> int:
    """Print the problems of the distributions in a folder; return the exit code."""
    problems = list(list_problems(ROOT, Path(dist), tag, __version__))
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
