"""Decide which runs may share a server: those whose JVM would start with the same settings."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_merge_provider import __version__
from airflow_merge_provider.core.child_process import build_child_environment, get_filesystem_id
from airflow_merge_provider.spark_process.jvm.class_archive import read_java_release
from airflow_merge_provider.spark_process.jvm.jars import find_java, spark_home
from airflow_merge_provider.spark_process.jvm.spark_defaults import read_spark_defaults
from airflow_merge_provider.spark_process.launch import list_jars
from airflow_merge_provider.spark_process.shared.settings import (
    MEMORY_SETTING,
    LocalSparkSettings,
    count_slots,
)

# The settings that a session can change while its server runs, except the following. Any other setting
# belongs to the server.
_SESSION_PREFIXES = ("spark.sql.", "spark.databricks.delta.")
# The parent run in OpenLineage differs in each run, which would otherwise have a server of its own.
_PARENT_RUN = ("spark.openlineage.parent", "spark.openlineage.rootParent")
# Spark's static SQL settings (StaticSQLConf), and those that a catalog or the metastore client reads once.
_STATIC_SQL = re.compile(
    r"spark\.sql\.(extensions|catalog|artifact\.|warehouse|hive|cache\.serializer|queryExecutionListeners|"
    r"ui\.|debug|streaming\.(ui\.|streamingQueryListeners)|globalTempDatabase|defaultUrlStreamHandlerFactory|"
    r"codegen\.(cache\.maxEntries|comments)|event\.truncate|filesourceTableRelationCacheSize|"
    r"metadataCacheTTLSeconds|legacy\.sessionInitWithConfigDefaults|columnar\.|"
    r"execution\.columnar\.|sources\.(schemaStringLengthThreshold|disabledJdbcConnProviderList)|"
    r"(broadcastExchange|shuffleExchange|resultQueryStage|subquery)\.maxThreadThreshold|.*metastore)"
)
# The name of an application of its own has no meaning on a server of many runs.
_IGNORED = ("spark.app.name",)

# A server gets these variables only, and all of them except _NEUTRAL are part of its identity: a run never
# uses credentials of another environment, and variables of a single task do not multiply the servers.
_ENVIRONMENT_NAMES = re.compile(
    r"(AWS|AZURE|GOOGLE|GCLOUD|GCS|CLOUDSDK|HADOOP|HDFS|YARN|HIVE|JAVA|JDK|SPARK|PYSPARK|KRB5|OSS|ALIBABA|ALIYUN|OCI|"
    r"MINIO|S3|ABFS|SSL|REQUESTS_CA|CURL_CA|LD)_\w+|(https?|no|ftp)_proxy|_JAVA_OPTIONS|KRB5CCNAME|"
    r"PYTHON(PATH|HOME|USERBASE)|AIRFLOW_MERGE_PROVIDER_CACHE|XDG_CACHE_HOME|TZ|TMPDIR|HOME",
    re.IGNORECASE,
)
_NEUTRAL = re.compile(r"PATH|USER|LOGNAME|LANG|LC_\w+|SHELL")
# Tokens and addresses of Spark Connect sessions, which belong to clients.
_OF_CLIENTS = re.compile(r"SPARK_CONNECT_\w+")
_SERVER_DIGEST_CHARACTERS = 20


@dataclass(frozen=True)
class ServerSpec:
    """Everything that determines a server. It may contain secrets: it is passed through a pipe only."""

    conf: dict[str, str]
    cores: int
    environment: dict[str, str]
    facts: dict[str, str]

    @property
    def memory(self) -> str:
        """The heap of the server's JVM."""
        return self.conf[MEMORY_SETTING]

    @property
    def master(self) -> str:
        """The Spark master of the server."""
        return f"local[{self.cores}]"

    @property
    def slots(self) -> int:
        """The number of runs that may use the server at the same time."""
        try:
            return count_slots(self.memory, self.cores)
        except ValueError:
            # Spark rejects this memory when it starts, with a message of its own.
            return 1

    def compute_digest(self, key: bytes) -> str:
        """Return the name of the server's folder; only the owner of the key can test guesses of a secret."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:_SERVER_DIGEST_CHARACTERS]

    def as_object(self) -> dict[str, Any]:
        """Return the values for the supervisor."""
        return asdict(self)


def split_conf(conf: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the user's settings into those of the server and those of a session.

    >>> split_conf({"spark.sql.ansi.enabled": "false", "spark.sql.extensions": "a.B", "spark.jars": "/c.jar"})
    ({'spark.sql.extensions': 'a.B', 'spark.jars': '/c.jar'}, {'spark.sql.ansi.enabled': 'false'})
    """
    session = {name: value for name, value in conf.items() if is_session_setting(name)}
    server = {name: value for name, value in conf.items() if name not in session and name not in _IGNORED}
    return server, session


def is_session_setting(name: str) -> bool:
    """Return whether a session can change a setting; False for every name that is not known to be one."""
    return name.startswith(_PARENT_RUN) or (
        name.startswith(_SESSION_PREFIXES) and not _STATIC_SQL.match(name)
    )


def build_spec(conf: Mapping[str, str], settings: LocalSparkSettings) -> ServerSpec:
    """Return what determines the server of a run with these settings.

    :raises SetupError: when Java, Spark or a jar is missing.
    """
    java, home = find_java(), spark_home()
    server_conf = {MEMORY_SETTING: settings.memory, **split_conf(conf)[0]}
    facts = {
        "package": __version__,
        "python": sys.executable,
        "java": str(java),
        "java_release": read_java_release(java),
        "spark": str(home.resolve()),
        "spark_jars": ",".join(sorted(jar.name for jar in home.glob("jars/spark-co*.jar"))),
        "spark_defaults": json.dumps(read_spark_defaults(), sort_keys=True),
        "delta_jars": ",".join(list_jars(server_conf)),
        "filesystem": get_filesystem_id() or "",
        # The server creates the files of tables.
        "umask": _read_umask(),
    }
    return ServerSpec(server_conf, settings.core_count, _select_variables(_ENVIRONMENT_NAMES), facts)


def build_environment(spec: ServerSpec) -> dict[str, str]:
    """Return the environment of the supervisor and of its JVM."""
    return {**_select_variables(_NEUTRAL), **spec.environment}


def parse_spec(values: Mapping[str, Any]) -> ServerSpec:
    """Return the specification that ``as_object`` has written."""
    return ServerSpec(**values)


def _read_umask() -> str:
    """Return the umask of this process; empty on systems that do not show it without changing it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return line.split()[1]
    return ""


def _select_variables(pattern: re.Pattern[str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(build_child_environment().items())
        if pattern.fullmatch(name) and not _OF_CLIENTS.fullmatch(name)
    }


def describe_memory_setting(conf: Mapping[str, str]) -> str:
    """Return the setting that determines the memory of the server: the user's, or Airflow's."""
    return MEMORY_SETTING if MEMORY_SETTING in conf else "[merge] local_spark_memory"
