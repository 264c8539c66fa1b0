"""Local copies of files, for stores that Spark has no jars for.

Source: docs/semantics/merge_record.md, Steps of a run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_merge_provider.core.child_process import make_work_folder
from airflow_merge_provider.core.dataset import escape_pattern
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage, Storage
from airflow_merge_provider.jobs.spark.session import is_local

# Hadoop's error messages for a URI scheme that it has no jar for.
_NO_JAR = ("No FileSystem for scheme", "ClassNotFoundException")


# The end of a name that denotes no compression.
_UNPACKED = ".json"


class LocalCopies:
    """Copies of the files of a run, for Spark on this machine; ``remove_copies`` removes them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._reached: dict[str, bool] = {}
        self._copies: dict[str, LocalStorage] = {}
        self._places: dict[str, str] = {}
        self._unpacked: dict[str, str] = {}

    def copy_files(self, source: Storage, uris: Iterable[str]) -> None:
        """Copy files that Spark cannot read at their location, unless they are already copied.

        :raises SetupError: when Spark is on another machine.
        """
        if self._is_reachable(source.location):
            return
        copies = self._copies.setdefault(source.location, self.create_folder())
        names = [uri.removeprefix(f"{source.location}/") for uri in uris if uri not in self._places]

        def copy_file(name: str) -> None:
            with source.open_file(name) as content:
                copies.write_stream(name, content)

        source.for_each(copy_file, names)
        self._places |= {source.build_uri(name): copies.build_uri(name) for name in names}

    def unpack_files(self, source: Storage, uris: Iterable[str]) -> None:
        """Copy files without their compression."""
        packed = {uri.removeprefix(f"{source.location}/"): uri for uri in uris if uri not in self._unpacked}
        if not packed:
            return
        copies = self.create_folder()

        def unpack_file(name: str) -> None:
            with source.open_unpacked(name) as content:
                copies.write_stream(f"{name}{_UNPACKED}", content)

        source.for_each(unpack_file, packed)
        self._unpacked |= {uri: copies.build_uri(f"{name}{_UNPACKED}") for name, uri in packed.items()}

    @property
    def has_unpacked(self) -> bool:
        """Whether Spark reads some files from other places than the rest of their folder."""
        return bool(self._unpacked)

    def find_location(self, uri: str) -> str:
        """Return the location from which Spark reads a file."""
        return self._unpacked.get(uri) or self._places.get(uri, uri)

    def find_locations(self, uris: Iterable[str]) -> list[str]:
        """Return the locations from which Spark reads several files."""
        return [self.find_location(uri) for uri in uris]

    def find_folder(self, source: Storage) -> str:
        """Return the folder from which Spark reads the files of a source; all must have been copied."""
        return self._copies[source.location].location if source.location in self._copies else source.location

    def open_staging(self, target: Storage) -> Storage:
        """Return a folder that Spark can write to, for files that ``take_back`` moves to the target."""
        return target if self._is_reachable(target.location) else self.create_folder()

    def take_back(self, staging: Storage, target: Storage, names: Iterable[str]) -> None:
        """Move written files to the target, unless Spark has written them there."""
        if staging is target:
            return
        target.for_each(lambda name: staging.move_file(name, target, name), names)

    def is_near(self) -> bool:
        """Return whether Spark reads the disk of this machine."""
        return is_local(self._spark)

    def create_folder(self) -> LocalStorage:
        """Return a new local folder, which exists until ``remove_copies``."""
        # A later run removes the folder of a process that was killed.
        self._folder = self._folder or self._stack.enter_context(make_work_folder())
        return LocalStorage(str(self._folder / uuid.uuid4().hex))

    def remove_copies(self) -> None:
        """Remove all copies."""
        self._stack.close()
        self._folder = None
        self._copies.clear()
        self._places.clear()
        self._unpacked.clear()

    def _is_reachable(self, location: str) -> bool:
        if location.startswith("/"):
            return True
        scheme = location.split("://", 1)[0]
        if scheme not in self._reached:
            self._reached[scheme] = _is_known(self._spark, location)
            if not self._reached[scheme] and not self.is_near():
                raise SetupError(
                    f"Spark has no file system for {scheme}: add the jars of the store to Spark, such as "
                    "hadoop-aws for s3a, or run Spark on this machine"
                )
        return self._reached[scheme]


def _is_known(spark: SparkSession, location: str) -> bool:
    """Return whether Spark has a file system for a location, which need not exist."""
    try:
        spark.read.format("text").load(escape_pattern(location)).schema  # noqa: B018 - makes Spark load the file system
    except Exception as error:  # noqa: BLE001 - py4j, pyspark and Connect errors have no common class
        return not any(text in str(error) for text in _NO_JAR)
    return True
