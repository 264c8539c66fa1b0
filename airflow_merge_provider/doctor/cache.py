"""Check the files that are created once per machine: jars and the class archive."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.clients import find_extra
from airflow_merge_provider.doctor.check import Check, describe_error
from airflow_merge_provider.jvm.hadoop_clients import AZURE_CLIENT, GCS_CLIENT, S3_CLIENT, HadoopClient
from airflow_merge_provider.jvm.jars import cache_folder, find_java, list_delta_jars, spark_home
from airflow_merge_provider.jvm.log_store.jar import PACKAGED_JAR, locate_log_store_jar
from airflow_merge_provider.launch import find_archive

_PREPARE = "run airflow_merge_provider prepare"
# The clients of Hadoop by the extra of this package for the same store.
_CLIENTS = {"s3": S3_CLIENT, "azure": AZURE_CLIENT, "gcs": GCS_CLIENT}
_FIRST_USE = "the first run that needs it downloads it"


def check_cache() -> Iterator[Check]:
    """Yield the cache folder, which the first run creates if it can."""
    folder = cache_folder()
    remedy = "set AIRFLOW_MERGE_PROVIDER_CACHE to a writable folder"
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        yield Check("cache folder", "missing", f"{folder} cannot be written ({error.strerror})", remedy)
    else:
        yield Check("cache folder", "ok", str(folder))


def check_jars(warehouse: str | None) -> Iterator[Check]:
    """Yield the jars of Delta, of the log store, and of the client of the warehouse's object store."""
    if own := _find_in_spark("delta-spark"):
        yield Check("Delta jars", "ok", f"in the jars folder of Spark ({own})")
    else:
        yield _check_files("Delta jars", list_delta_jars(), "Maven Central is needed: " + _PREPARE)
    yield _check_files("log store jar", [locate_log_store_jar()], _PREPARE)
    client = _CLIENTS.get(find_extra(warehouse) or "")
    if client is not None and not _find_in_spark(client.artifact):
        yield _check_client(client)


def _check_client(client: HadoopClient) -> Check:
    name = f"{client.store} client jars"
    try:
        client.require_hadoop()
    except SetupError as error:
        return describe_error(name, error)
    if client.folder.is_dir():
        return Check(name, "ok", str(client.folder))
    return Check(name, "warning", "not cached", _FIRST_USE)


def check_archive() -> Iterator[Check]:
    """Yield the class archive, without which Spark starts more slowly."""
    try:
        find_java()
        jars = [] if _find_in_spark("delta-spark") else list_delta_jars()
        if not all(jar.is_file() for jar in [*jars, locate_log_store_jar()]):
            # A run would download them.
            yield Check("class archive", "warning", "not checked: jars are missing", _PREPARE)
            return
        archive = find_archive({})
    except SetupError:
        yield Check("class archive", "warning", "not checked", "get Java and Spark first")
        return
    yield _check_files("class archive", [archive], f"{_PREPARE}, so that Spark starts faster")


def _check_files(name: str, files: list[Path], remedy: str) -> Check:
    try:
        absent = [file for file in files if not file.is_file()]
        if not absent:
            for file in files:
                file.open("rb").close()
    except OSError as error:
        return Check(name, "missing", f"{error.filename} cannot be read ({error.strerror})", remedy)
    if absent:
        return Check(name, "warning", f"{absent[0]} does not exist", remedy)
    value = (
        "in the package" if files == [PACKAGED_JAR] else str(files[0] if len(files) == 1 else files[0].parent)
    )
    return Check(name, "ok", value)


def _find_in_spark(artifact: str) -> str:
    """Return the name of a jar in Spark's own folder; an empty string if there is none."""
    try:
        jars = list(spark_home().glob(f"jars/{artifact}[-_]*.jar"))
    except SetupError:
        return ""
    return jars[0].name if jars else ""
