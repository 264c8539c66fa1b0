"""Tests of finding Java, Spark and the jars, and of the errors if one is missing."""

from __future__ import annotations

import importlib.util
import os
import threading
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.jvm import jars
from airflow_merge_provider.spark_process.jvm.jars import AZURE_CLIENT, GCS_CLIENT, S3_CLIENT

# Replacement of Spark's resolver that creates the files or prints the messages of Ivy.
RESOLVER = """#!/bin/sh
for word in "$@"; do case "$word" in spark.jars.ivy=*) folder="${word#spark.jars.ivy=}";; esac; done
echo x >> "$(dirname "$0")/calls"
if [ -e "$(dirname "$0")/offline" ]; then
  echo ":: problems ::"; echo "Server access error at url https://example.invalid (Connection refused)"
  echo "unresolved dependency: io.delta#delta-storage;4.4.0: not found"; exit 1
fi
mkdir -p "$folder/jars"
for jar in delta-spark_4.2_2.13 delta-storage; do echo "$jar" > "$folder/jars/io.delta_$jar-4.4.0.jar"; done
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create a machine with Java, a Spark with the replaced resolver, and an empty cache."""
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    submit = home / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(RESOLVER)
    submit.chmod(0o755)
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").touch(mode=0o755)
    (java / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.1"\n')
    # The checksums of the files that the resolver creates.
    names = [f"delta-spark_{version}_2.13" for version in jars.SPARK_VERSIONS] + ["delta-storage"]
    digests = [sha256(f"{name}\n".encode()).hexdigest() for name in names]
    lines = [f"{digest}  io.delta_{name}-4.4.0.jar" for name, digest in zip(names, digests, strict=True)]
    (tmp_path / "checksums.txt").write_text("\n".join(lines))
    monkeypatch.setattr(jars, "CHECKSUMS", tmp_path / "checksums.txt")
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(java))
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def _count_calls(machine: Path) -> int:
    file = machine / "spark" / "bin" / "calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_the_two_jars_are_fetched_once(machine: Any) -> None:
    """The two jars are downloaded once. The second call reads the cache, which contains only the jars."""
    first, second = jars.delta_jars(), jars.delta_jars()

    folder = machine / "cache" / "jars"
    names = ["delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar"]
    assert first == second == tuple(str(folder / name) for name in names)
    assert sorted(file.name for file in folder.iterdir()) == names
    assert _count_calls(machine) == 1


@pytest.mark.parametrize("version", ["4.1", "4.2"])
def test_the_jar_of_delta_suits_the_version_of_spark(machine: Any, version: str) -> None:
    """Delta has a jar for each version of Spark."""
    spark_jars = machine / "spark" / "jars"
    (spark_jars / "spark-core_2.13-4.2.0.jar").rename(spark_jars / f"spark-core_2.13-{version}.3.jar")

    assert jars.list_delta_jars()[0].name == f"delta-spark_{version}_2.13-4.4.0.jar"


def test_first_uses_at_the_same_time_do_not_disturb_each_other(machine: Any) -> None:
    """Several workers can download the jars at once on a new machine."""
    jar_lists: list[tuple[str, ...]] = []

    def find_jars() -> None:
        jar_lists.append(jars.delta_jars())

    threads = [threading.Thread(target=find_jars) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(jar_lists)) == 1
    assert all(Path(jar).read_text() for jar in jar_lists[0])


def test_jars_that_cannot_be_fetched_are_named_with_the_place_for_them(machine: Any) -> None:
    """The first line of the error has the fix and the folder for the jars. The resolver's reasons follow."""
    (machine / "spark" / "bin" / "offline").touch()

    with pytest.raises(SetupError) as caught:
        jars.delta_jars()

    first, *reasons = str(caught.value).splitlines()
    assert first.startswith(
        "The Delta jars cannot be downloaded from Maven Central: allow access to it, or copy "
    )
    assert first.endswith(f" to {machine / 'cache' / 'jars'}")
    assert any("Connection refused" in reason for reason in reasons)


def test_a_cache_that_cannot_be_written_names_the_variable(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only cache folder, common in containers, is an error with the variable that sets another one."""
    (machine / "file").touch()
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(machine / "file"))

    with pytest.raises(
        SetupError, match="cannot be written: set AIRFLOW_MERGE_PROVIDER_CACHE to a writable folder"
    ):
        jars.delta_jars()


def test_a_jar_with_other_content_is_refused(machine: Any) -> None:
    """A proxy or a mirror that returns another file is found before Spark runs its code."""
    (machine / "checksums.txt").write_text("00  io.delta_delta-storage-4.4.0.jar\n")

    with pytest.raises(SetupError, match=r"io\.delta_delta-s\S+\.jar is not the file that Maven Central has"):
        jars.delta_jars()

    assert list((machine / "cache" / "jars").iterdir()) == []


def test_every_jar_that_is_downloaded_has_a_checksum() -> None:
    """The packages of every supported version of Spark and Hadoop are in the list of checksums."""
    names = {line.split()[1] for line in jars.CHECKSUMS.read_text().splitlines()}
    packages = [f"io.delta:delta-spark_{version}_2.13:4.4.0" for version in jars.SPARK_VERSIONS]
    for client in (S3_CLIENT, AZURE_CLIENT, GCS_CLIENT):
        for hadoop, more in client.packages.items():
            packages += [f"org.apache.hadoop:{client.artifact}:{hadoop}", *more]

    expected = {"{}_{}-{}.jar".format(*package.split(":")) for package in packages}
    assert expected <= names
    assert all(len(line.split()[0]) == 64 for line in jars.CHECKSUMS.read_text().splitlines())


@pytest.mark.parametrize("name", ["cache", "cache/jars"])
def test_a_cache_that_others_may_write_is_refused(machine: Any, name: str) -> None:
    """Spark runs the jars of the cache, so nobody else may replace them."""
    jars.delta_jars()
    (machine / name).chmod(0o777)

    with pytest.raises(SetupError, match=f"Other users may write the cache folder {machine / name}.*chmod"):
        jars.delta_jars()

    (machine / name).chmod(0o755)
    assert jars.delta_jars()


def test_a_cache_of_another_user_is_refused_unless_it_is_set(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner may write, too; a folder that the variable names has been chosen."""
    folder = machine / "airflow_merge_provider"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    monkeypatch.setenv("AIRFLOW_MERGE_PROVIDER_CACHE", str(folder))
    is_of_root = folder.stat().st_uid == 0
    assert jars.cache_folder() == folder

    monkeypatch.delenv("AIRFLOW_MERGE_PROVIDER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(machine))
    with pytest.raises(SetupError, match="Other users may write") if not is_of_root else nullcontext():
        jars.cache_folder()


def test_the_cache_follows_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By default the cache is in the user's cache folder."""
    monkeypatch.delenv("AIRFLOW_MERGE_PROVIDER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert jars.cache_folder() == tmp_path / "airflow_merge_provider"


def test_a_spark_of_another_version_is_refused(machine: Any) -> None:
    """Another version of Spark is rejected.

    An old SPARK_HOME in the environment would otherwise cause unclear errors later.
    """
    (machine / "spark" / "jars" / "spark-core_2.13-4.2.0.jar").rename(
        machine / "spark" / "jars" / "spark-core_2.12-3.5.1.jar"
    )

    with pytest.raises(
        SetupError,
        match=r"^SPARK_HOME=.* does not contain Spark 4.2 or 4.1: set it to a folder of Spark",
    ):
        jars.spark_home()


def test_without_spark_home_the_installed_package_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SPARK_HOME the installed pyspark package is used. Nothing has to be set after pip install."""
    monkeypatch.delenv("SPARK_HOME", raising=False)

    assert (jars.spark_home() / "bin" / "spark-submit").is_file()


def test_without_any_spark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark, the first line has the command that installs the extra."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(
        SetupError,
        match=r"^Spark 4.2 or 4.1 is not installed: run pip install 'airflow-merge-provider\[spark\]'",
    ):
        jars.spark_home()


def test_java_is_found_on_the_path(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JAVA_HOME, Java is found on the path."""
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(machine / "java" / "bin"))

    assert jars.find_java() == machine / "java" / "bin" / "java"


@pytest.mark.parametrize("home", ["nowhere", None])
def test_no_java_is_said_with_the_remedy(machine: Any, monkeypatch: pytest.MonkeyPatch, home: Any) -> None:
    """Missing Java is an error with the fix, whether JAVA_HOME is wrong or not set."""
    monkeypatch.setenv("PATH", str(machine / "empty"))
    if home:
        monkeypatch.setenv("JAVA_HOME", str(machine / home))
    else:
        monkeypatch.delenv("JAVA_HOME")

    with pytest.raises(
        SetupError, match=r"^Java is missing: install Java 17 or 21, or set JAVA_HOME to its folder"
    ):
        jars.find_java()


def test_a_java_that_is_too_old_is_refused(machine: Any) -> None:
    """A Java version that is too old is rejected. Spark itself would fail with a class version error."""
    (machine / "java" / "release").write_text('JAVA_VERSION="1.8.0_402"\n')

    with pytest.raises(SetupError, match=r"^Java 8 is too old for Spark: install Java 17 or 21"):
        jars.find_java()


def test_the_module_prints_the_jars(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The module prints the paths of the jars for installers."""
    assert jars.main() == 0
    assert capsys.readouterr().out.splitlines() == list(jars.delta_jars())


def test_the_module_fails_with_the_remedy(
    machine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module fails with the fix, so that an installer stops."""
    monkeypatch.setenv("JAVA_HOME", os.devnull)

    assert jars.main() == 1
    assert capsys.readouterr().err.startswith("Java is missing")
