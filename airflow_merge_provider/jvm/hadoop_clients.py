"""Find the jars of Hadoop's clients of object stores, which Spark's own distribution does not contain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jvm.jars import cache_folder, download_packages, spark_home

# The versions that Hadoop's own build puts together.
_HADOOP, _SDK = "3.5.0", "2.35.4"
# The parts of the AWS SDK that the client uses: 12 MB instead of 670 MB of the whole SDK.
_SDK_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
# Spark's jars folder has these already.
_NOT_NEEDED = (
    "org.apache.hadoop:hadoop-client*,io.netty:*,org.slf4j:*,commons-*:*,org.apache.httpcomponents:*,"
    "com.fasterxml.jackson.core:*"
)


@dataclass(frozen=True, slots=True)
class HadoopClient:
    """A client: the name of its store, and its packages; the first one contains it."""

    store: str
    packages: tuple[str, ...]
    excluded: str = _NOT_NEEDED

    @property
    def artifact(self) -> str:
        """The name of the package that contains the client."""
        return self.packages[0].split(":")[1]

    @property
    def folder(self) -> Path:
        """The folder in which the jars are cached, whether it exists or not."""
        return cache_folder() / "jars" / f"{self.store.lower()}-{_HADOOP}"

    def find_jars(self) -> tuple[str, ...]:
        """Return the paths of the jars; Spark's own resolver downloads them on first use.

        :raises SetupError: when they are missing and cannot be downloaded, or Spark has another Hadoop.
        """
        self._require_hadoop()
        if not self.folder.is_dir():
            self._fetch_jars()
        return tuple(sorted(str(jar) for jar in self.folder.glob("*.jar")))

    def _fetch_jars(self) -> None:
        """Download all jars and move them at once, so that a folder that exists is complete."""
        folder = self.folder
        remedy = f"add {' and '.join(self.packages)} to Spark with spark.jars.packages"
        title = f"Hadoop's {self.store} client"
        with download_packages(title, self.packages, self.excluded, folder.parent, remedy) as jars:
            try:
                jars.rename(folder)
            except OSError:
                # Another process may have been faster.
                if not folder.is_dir():
                    raise

    def _require_hadoop(self) -> None:
        home = spark_home()
        if not list(home.glob(f"jars/hadoop-client-api-{_HADOOP}.jar")):
            raise SetupError(
                f"The Spark in {home} does not have Hadoop {_HADOOP}: "
                f"add {self.artifact} of its Hadoop version with spark.jars.packages"
            )


S3_CLIENT = HadoopClient(
    "S3",
    (
        f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
        *(f"software.amazon.awssdk:{part}:{_SDK}" for part in _SDK_PARTS),
    ),
    excluded=(
        "software.amazon.awssdk:bundle,org.apache.hadoop:hadoop-client*,io.netty:*,org.slf4j:*,commons-*:*,"
        "org.apache.httpcomponents:*"
    ),
)
AZURE_CLIENT = HadoopClient("Azure", (f"org.apache.hadoop:hadoop-azure:{_HADOOP}",))
# One jar with all that the client uses.
GCS_CLIENT = HadoopClient("GCS", (f"org.apache.hadoop:hadoop-gcp:{_HADOOP}",))
