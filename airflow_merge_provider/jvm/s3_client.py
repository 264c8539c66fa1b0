"""Find the jars of Hadoop's S3 client, which Spark's own distribution does not contain."""

from __future__ import annotations

from pathlib import Path

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jvm.jars import cache_folder, download_packages, spark_home

# The versions that Hadoop's own build puts together.
_HADOOP, _SDK = "3.5.0", "2.35.4"
# The parts of the AWS SDK that the client uses: 12 MB instead of 670 MB of the whole SDK.
_SDK_PARTS = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
_PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP}",
    *(f"software.amazon.awssdk:{part}:{_SDK}" for part in _SDK_PARTS),
)
# Spark's jars folder has these already.
_NOT_NEEDED = (
    "software.amazon.awssdk:bundle,org.apache.hadoop:hadoop-client*,io.netty:*,org.slf4j:*,commons-*:*,"
    "org.apache.httpcomponents:*"
)


def s3_jars() -> tuple[str, ...]:
    """Return the paths of the jars of the S3 client; Spark's own resolver downloads them on first use.

    :raises SetupError: when they are missing and cannot be downloaded, or Spark has another Hadoop.
    """
    _require_hadoop()
    folder = locate_s3_folder()
    if not folder.is_dir():
        _fetch_jars(folder)
    return tuple(sorted(str(jar) for jar in folder.glob("*.jar")))


def locate_s3_folder() -> Path:
    """Return the folder in which the jars of the S3 client are cached, whether it exists or not."""
    return cache_folder() / "jars" / f"s3-{_HADOOP}"


def _fetch_jars(folder: Path) -> None:
    """Download all jars and move them at once, so that a folder that exists is complete."""
    remedy = f"add {' and '.join(_PACKAGES)} to Spark with spark.jars.packages"
    with download_packages("Hadoop's S3 client", _PACKAGES, _NOT_NEEDED, folder.parent, remedy) as jars:
        try:
            jars.rename(folder)
        except OSError:
            # Another process may have been faster.
            if not folder.is_dir():
                raise


def _require_hadoop() -> None:
    home = spark_home()
    if not list(home.glob(f"jars/hadoop-client-api-{_HADOOP}.jar")):
        raise SetupError(
            f"The Spark in {home} does not have Hadoop {_HADOOP}: add hadoop-aws of its Hadoop version with "
            "spark.jars.packages"
        )
