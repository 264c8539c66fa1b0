"""Find what a Spark process needs on this machine: Java, spark-submit, the jars of Delta and of stores."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_merge_provider.core.child_process import build_child_environment
from airflow_merge_provider.core.errors import MergeError, SetupError

# Newest first: Delta has a jar for each of them.
SPARK_VERSIONS = ("4.2", "4.1")
_SPARK_NAME = f"Spark {', '.join(SPARK_VERSIONS[:-1])} or {SPARK_VERSIONS[-1]}"
_DELTA_VERSION = "4.4.0"
# Delta's other dependencies are already in Spark's jars folder, or are needed only for other catalogs.
_EXCLUDED_OF_DELTA = (
    "com.*:*,org.*:*,io.airlift:*,io.unitycatalog:*,javax.*:*,jakarta.*:*,commons-*:*,io.delta:delta-kernel*"
)
_JAVA_MIN = 17
# The SHA-256 of every jar that is downloaded.
CHECKSUMS = Path(__file__).with_name("jar_checksums.txt")


def cache_folder() -> Path:
    """Return the folder for files that are created once per machine: jars and class archives.

    :raises SetupError: if other users may write it: Spark runs the code that it contains.
    """
    configured_path = os.environ.get("AIRFLOW_MERGE_PROVIDER_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(configured_path or f"{base}/airflow_merge_provider").expanduser()
    for path in (folder, folder / "jars"):
        _require_unshared(path, is_configured=bool(configured_path))
    return folder


def _require_unshared(folder: Path, *, is_configured: bool) -> None:
    try:
        status = folder.stat()
    except OSError:
        # Whoever wants to write it finds out why it cannot be used.
        return
    # Images of containers have a folder of another user, and write it as the group of root.
    is_own = status.st_uid in {os.geteuid(), 0} or is_configured
    own_groups = {os.getegid(), 0}
    is_shared = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and status.st_gid not in own_groups
    )
    if is_shared or not is_own:
        raise SetupError(
            f"Other users may write the cache folder {folder}, whose code Spark runs: run chmod go-w "
            f"{folder}, or set AIRFLOW_MERGE_PROVIDER_CACHE to another folder"
        )


def delta_jars() -> tuple[str, ...]:
    """Return the paths of the two Delta jars; Spark's own resolver downloads them on first use.

    :raises SetupError: when they are missing and cannot be downloaded.
    """
    jars = list_delta_jars()
    if not all(jar.is_file() for jar in jars):
        _fetch_jars(jars)
    return tuple(str(jar) for jar in jars)


def list_delta_jars() -> list[Path]:
    """Return the paths at which the two Delta jars are cached, whether they exist or not.

    :raises SetupError: when Spark is not found.
    """
    artifacts = (f"delta-spark_{spark_version(spark_home())}_2.13", "delta-storage")
    return [cache_folder() / "jars" / f"{artifact}-{_DELTA_VERSION}.jar" for artifact in artifacts]


def spark_version(home: Path) -> str | None:
    """Return the supported version of the Spark in a folder, such as 4.2; None if there is none."""
    versions = (
        version for version in SPARK_VERSIONS if list(home.glob(f"jars/spark-core_2.13-{version}.*.jar"))
    )
    return next(versions, None)


def spark_home() -> Path:
    """Return the Spark folder: ``SPARK_HOME`` if it is set, else the installed pyspark package.

    :raises SetupError: when Spark is not found, or has an unsupported version.
    """
    folder_name = os.environ.get("SPARK_HOME")
    if folder_name:
        home = Path(folder_name)
        if spark_version(home) is None:
            raise SetupError(
                f"SPARK_HOME={folder_name} does not contain {_SPARK_NAME}: set it to a folder of Spark, or "
                "unset it to use the installed pyspark package"
            )
        return home
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec and spec.submodule_search_locations) or ():
        if spark_version(Path(folder)) is not None:
            return Path(folder)
    raise SetupError(
        f"{_SPARK_NAME} is not installed: run pip install 'airflow-merge-provider[spark]', or set SPARK_HOME"
    )


def find_java() -> Path:
    """Return the path of the Java program that Spark would start.

    :raises SetupError: when Java is not found, or is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        reason = f"JAVA_HOME={home} does not contain bin/java" if home else "java is not on the PATH"
        raise SetupError(
            f"Java is missing: install Java {_JAVA_MIN} or 21, or set JAVA_HOME to its folder ({reason})"
        )
    program = Path(java).resolve()
    version = java_version(program)
    if version is not None and version < _JAVA_MIN:
        raise SetupError(
            f"Java {version} is too old for Spark: "
            f"install Java {_JAVA_MIN} or 21, or set JAVA_HOME to its folder (found {program})"
        )
    return program


def java_version(program: Path) -> int | None:
    """Return the major version from the release file of a Java installation, without starting Java."""
    release = program.parent.parent / "release"
    if not release.is_file():
        return None
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE)
    return int(match[1]) if match else None


def _fetch_jars(jars: list[Path]) -> None:
    """Download the jars and move them in one by one, so that parallel calls are safe."""
    packages = [f"io.delta:{jar.stem.removesuffix(f'-{_DELTA_VERSION}')}:{_DELTA_VERSION}" for jar in jars]
    names = " and ".join(jar.name for jar in jars)
    remedy = f"copy {names} to {jars[0].parent}"
    with download_packages(
        "The Delta jars", packages, _EXCLUDED_OF_DELTA, jars[0].parent, remedy
    ) as downloaded_jars:
        for jar in jars:
            (downloaded_jars / f"io.delta_{jar.name}").replace(jar)


@contextmanager
def download_packages(
    title: str,
    packages: Sequence[str],
    excluded: str,
    folder: Path,
    remedy: str,
    checksums: Path | None = None,
) -> Iterator[Path]:
    """Download packages of Maven Central with Spark's own resolver, and yield the folder of their jars.

    :param title: what the packages are, for errors.
    :param packages: their coordinates; what they depend on is downloaded too, except ``excluded``.
    :param folder: where the temporary folder is made: jars can be moved from it to this folder.
    :param remedy: what else to do if they cannot be downloaded.
    :param checksums: a file with the checksums of the jars that were tested; by default that of the package.
    :raises SetupError: when Java or Spark is missing, or a package cannot be downloaded or is
        not the one that was tested.
    """
    find_java()
    submit = spark_home() / "bin" / "spark-submit"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="fetch-", dir=folder))
    except OSError as error:
        raise SetupError(
            f"The cache folder {folder} cannot be written: set AIRFLOW_MERGE_PROVIDER_CACHE to a "
            f"writable folder ({error.strerror})"
        ) from None
    try:
        output = _resolve_packages(submit, work, packages, excluded)
        names = [package.split(":") for package in packages]
        expected_jars = [work / "jars" / f"{group}_{name}-{version}.jar" for group, name, version in names]
        if not all(jar.is_file() for jar in expected_jars):
            raise SetupError(_describe_failed_download(title, remedy, output))
        _require_checksums(work / "jars", checksums or CHECKSUMS, title, remedy)
        yield work / "jars"
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _require_checksums(folder: Path, checksums: Path, title: str, remedy: str) -> None:
    """Compare jars with the checksums of those that this package was tested with: Spark runs their code."""
    tested = {line.split()[1]: line.split()[0] for line in checksums.read_text("ascii").splitlines()}
    for jar in sorted(folder.glob("*.jar")):
        if hashlib.sha256(jar.read_bytes()).hexdigest() != tested.get(jar.name):
            raise SetupError(
                f"{title} cannot be used: {jar.name} is not the file that Maven Central has: check the "
                f"proxy or the mirror, or {remedy}"
            )


def _resolve_packages(submit: Path, work: Path, packages: Sequence[str], excluded: str) -> str:
    script = work / "nothing.py"
    script.write_text("", encoding="utf-8")
    command = [
        str(submit),
        *("--master", "local[1]", "--conf", f"spark.jars.ivy={work}"),
        *("--packages", ",".join(packages), "--exclude-packages", excluded, str(script)),
    ]
    home = str(submit.parent.parent)
    env = build_child_environment(SPARK_HOME=home, PYSPARK_DRIVER_PYTHON=sys.executable)
    process = subprocess.run(  # noqa: S603 - our own command, no shell
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return process.stdout


def _describe_failed_download(title: str, remedy: str, output: str) -> str:
    reasons = [
        line.strip()
        for line in output.splitlines()
        if re.search(r"error|fail|not found", line, re.IGNORECASE)
    ]
    first_line = f"{title} cannot be downloaded from Maven Central: allow access to it, or {remedy}"
    return "\n".join([first_line, *reasons[:8]])


def main() -> int:
    """Download the jars if necessary and print their paths."""
    try:
        paths = delta_jars()
    except MergeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{jar}\n" for jar in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())


# The Hadoop of Spark 4.2 and 4.1, and the AWS SDK of each. The S3 client of an earlier Hadoop cannot create a
# file on the condition that there is none.
_SDK_OF_HADOOP = {"3.5.0": "2.35.4", "3.4.2": "2.29.52"}
# The parts of the AWS SDK that the client uses: 12 MB instead of 670 MB of the whole SDK.
_SDK_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
_API = "hadoop-client-api"
# Spark's jars folder has these already.
_EXCLUDED_OF_HADOOP = (
    "org.apache.hadoop:hadoop-client*,io.netty:*,org.slf4j:*,commons-*:*,org.apache.httpcomponents:*,"
    "com.fasterxml.jackson.core:*"
)


@dataclass(frozen=True, slots=True)
class HadoopClient:
    """A client of a kind of object store, in the versions of Hadoop that have it.

    :param store: the name of the store.
    :param artifact: the package that contains the client; its version is that of Hadoop.
    :param packages: further packages for each version of Hadoop.
    :param excluded: what Spark contains, or the client does not need.
    :param limit: what the client of an earlier Hadoop cannot do.
    """

    store: str
    artifact: str
    packages: Mapping[str, tuple[str, ...]]
    excluded: str = _EXCLUDED_OF_HADOOP
    limit: str = ""

    @property
    def folder(self) -> Path:
        """The folder in which the jars are cached, whether it exists or not."""
        return cache_folder() / "jars" / f"{self.store.lower()}-{self.find_hadoop() or 'none'}"

    def find_hadoop(self) -> str | None:
        """Return the version of Spark's Hadoop if the client works with it, else None.

        :raises SetupError: when Spark is not found.
        """
        jars = spark_home() / "jars"
        return next((hadoop for hadoop in self.packages if (jars / f"{_API}-{hadoop}.jar").is_file()), None)

    def require_hadoop(self) -> str:
        """Return the version of Spark's Hadoop.

        :raises SetupError: when the client does not work with it, or Spark is not found.
        """
        hadoop = self.find_hadoop()
        if hadoop is None:
            limit = f" ({self.limit})" if self.limit else ""
            raise SetupError(
                f"The Spark in {spark_home()} does not have Hadoop {' or '.join(self.packages)}: use a Spark "
                f"that has it, or add {self.artifact} of its Hadoop version with spark.jars.packages{limit}"
            )
        return hadoop

    def find_jars(self) -> tuple[str, ...]:
        """Return the paths of the jars; Spark's own resolver downloads them on first use.

        :raises SetupError: when they are missing and cannot be downloaded, or Spark has another Hadoop.
        """
        hadoop = self.require_hadoop()
        if not self.folder.is_dir():
            self._fetch_jars(hadoop)
        return tuple(sorted(str(jar) for jar in self.folder.glob("*.jar")))

    def _fetch_jars(self, hadoop: str) -> None:
        """Download all jars and move them at once, so that a folder that exists is complete."""
        folder = self.folder
        packages = (f"org.apache.hadoop:{self.artifact}:{hadoop}", *self.packages[hadoop])
        remedy = f"add {' and '.join(packages)} to Spark with spark.jars.packages"
        title = f"Hadoop's {self.store} client"
        with download_packages(title, packages, self.excluded, folder.parent, remedy) as jars:
            try:
                jars.rename(folder)
            except OSError:
                # Another process may have been faster.
                if not folder.is_dir():
                    raise


S3_CLIENT = HadoopClient(
    "S3",
    "hadoop-aws",
    {
        hadoop: tuple(f"software.amazon.awssdk:{part}:{sdk}" for part in _SDK_PARTS)
        for hadoop, sdk in _SDK_OF_HADOOP.items()
    },
    excluded=(
        "software.amazon.awssdk:bundle,org.apache.hadoop:hadoop-client*,io.netty:*,org.slf4j:*,commons-*:*,"
        "org.apache.httpcomponents:*"
    ),
    limit="before Hadoop 3.4.2 it cannot refuse the second of two writers, so that a run needs "
    "allow_single_writer",
)
AZURE_CLIENT = HadoopClient("Azure", "hadoop-azure", {"3.5.0": (), "3.4.2": ()})
# One jar with all that the client uses.
GCS_CLIENT = HadoopClient("GCS", "hadoop-gcp", {"3.5.0": ()})
