"""Find the jars of Hadoop's clients of object stores, which Spark's own distribution does not contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.spark_process.jvm.jars import cache_folder, download_packages, spark_home

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
