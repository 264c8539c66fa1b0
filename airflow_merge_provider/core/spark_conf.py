"""The Spark settings of a run: defaults for small and medium data, overridden by the user's settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.object_store.clients import GCS_LOG_STORE, LOG_STORE
from airflow_merge_provider.core.object_store.gcs_settings import AUTH_TYPE_SETTING

_LOG4J = Path(__file__).with_name("log4j2.properties")

TIME_ZONE = "spark.sql.session.timeZone"

_ALWAYS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    TIME_ZONE: "UTC",
    "spark.sql.ansi.enabled": "true",
    # By default, Spark writes times in a form that other readers take for others before 1677 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "true",
    # Without this, cached rows keep one partition per shuffle partition and are written as that many files.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Recording the line of each call for Spark's error texts makes every call eight calls. This package
    # writes its own error messages.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # To infer filters, Spark substitutes every alias for every column: twenty columns exhaust the driver.
    "spark.sql.constraintPropagation.enabled": "false",
    # One run generates more classes than the default of 100, so the next run of the session would find none.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Delta's default of 50 tasks per snapshot suits tables of a hundred thousand files.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Delta's own log store for local disks overwrites an entry that another process has just written. These
# classes are in the jar of this package.
_LOG_STORE = {"spark.delta.logStore.file.impl": "airflow_merge_provider.HardLinkLogStore"}
# Delta accepts no log store for one scheme beside this one for all schemes.
_LOG_STORE_PREFIX = "spark.delta.logStore."
_LOG_STORE_OF_ALL = f"{_LOG_STORE_PREFIX}class"
_OWN_LOG_STORES = (*_LOG_STORE.values(), LOG_STORE, GCS_LOG_STORE)
# Without its native library, Hadoop starts a process for each local file that it writes.
_LOCAL_FILES = {
    "spark.hadoop.fs.file.impl": "airflow_merge_provider.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "airflow_merge_provider.LocalFileContext",
}
_OWN_CLASSES, _CLASS_PATH = ("spark.jars", "spark.jars.packages"), "spark.driver.extraClassPath"
# The setting of a session that allows commits which another writer could overwrite.
SINGLE_WRITER = "airflow_merge_provider.allow_single_writer"

# List settings: the user's entries are appended to the defaults instead of replacing them.
_JOINED = {
    "spark.sql.extensions": ",",
    "spark.jars": ",",
    "spark.plugins": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.driver.extraClassPath": os.pathsep,
}

# The settings that can be changed in a session of a server that another process started.
_SESSION_SETTINGS = (
    TIME_ZONE,
    "spark.sql.ansi.enabled",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning",
    "spark.sql.constraintPropagation.enabled",
    "spark.databricks.delta.snapshotPartitions",
)


# Settings that spark-submit and a Connect client ignore because they are set elsewhere, and where.
_MISPLACED = {
    "spark.master": "set the master in the connection, or with --master on the command line",
    "spark.remote": "set the server in a spark_connect connection, or with --remote on the command line",
    "spark.submit.deployMode": "remove it: jobs always run in client mode, so that their result can be read",
}


def find_conf_problems(conf: Mapping[Any, Any], path: str) -> list[Problem]:
    """Return a problem for every setting without effect, and for every name that Spark does not know as one.

    :param conf: settings as users write them; None is a setting that is not set.
    :param path: where the settings are configured.
    """
    problems = []
    for name in conf:
        if not isinstance(name, str) or not name or re.search(r"\s", name):
            message = "is not a valid name of a Spark setting"
            problems.append(Problem(f"{path}[{name!r}]", "name", message, "remove blanks from the name"))
        elif name in _MISPLACED and conf[name] is not None:
            message = "has no effect in the Spark settings"
            problems.append(Problem(f"{path}[{name!r}]", "misplaced", message, _MISPLACED[name]))
    return problems


def format_settings(conf: Mapping[Any, Any] | None, path: str = "conf") -> dict[str, str]:
    """Return settings as Spark reads them, without those that are None.

    >>> format_settings({"spark.a": True, "spark.b": 2, "spark.c": None})
    {'spark.a': 'true', 'spark.b': '2'}

    :raises ConfigError: with every name that is not valid.
    """
    settings = conf or {}
    if invalid := [problem for problem in find_conf_problems(settings, path) if problem.code == "name"]:
        raise ConfigError.from_problems(invalid)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
        if value is not None
    }


def session_conf(*, local: bool, jars: Sequence[str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Spark process that is about to start.

    :param jars: the jars to add, with that of the log stores; none if Spark elsewhere has its own.

    >>> session_conf(local=False, jars=["/a.jar"], user={"spark.jars": "/b.jar"})["spark.jars"]
    '/a.jar,/b.jar'
    """
    conf = {**_ALWAYS, "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"}
    if jars:
        conf |= _LOG_STORE
    # Classes on the class path of the driver do not see those of spark.jars, which may be Delta.
    jars_setting = "spark.jars"
    if local and not names_artifact("delta-spark", user, settings=_OWN_CLASSES):
        jars_setting = _CLASS_PATH
        conf |= _LOCAL_FILES
    if local:
        conf |= {
            "spark.sql.shuffle.partitions": str(2 * count_cores()),
            "spark.driver.memory": "2g",
            "spark.driver.host": "localhost",
            # Spark's own ports on this machine accept only processes that have a secret of this Spark.
            "spark.authenticate": "true",
            # Hadoop's default finds credentials only on machines of Google.
            AUTH_TYPE_SETTING: "APPLICATION_DEFAULT",
        }
    if jars:
        # A jar on the class path of the driver needs no copy and no Ivy; remote executors need a copy.
        conf[jars_setting] = _JOINED[jars_setting].join(jars)
    return _choose_log_stores(merge_settings(conf, user))


def inherit_settings(defaults: Mapping[str, str], user: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a run with those of spark-defaults.conf that this package would replace.

    A run's file of settings replaces a list of spark-defaults.conf, which may have the jars of a cluster or
    the certificates of a proxy. Everything else of spark-defaults.conf is read by Spark.

    >>> inherit_settings({"spark.jars": "/site.jar", "spark.master": "yarn"}, {"spark.jars": "/own.jar"})
    {'spark.jars': '/site.jar,/own.jar'}
    """
    names = (*_JOINED, *_OWN_CLASSES, _LOG_STORE_OF_ALL)
    return merge_settings({name: value for name, value in defaults.items() if name in names}, user)


def _choose_log_stores(conf: Mapping[str, str]) -> dict[str, str]:
    """Return settings without the log stores of this package if the user has chosen one for all schemes."""
    if _LOG_STORE_OF_ALL not in conf:
        return dict(conf)
    return {
        name: value
        for name, value in conf.items()
        if not (name.startswith(_LOG_STORE_PREFIX) and value in _OWN_LOG_STORES)
    }


def names_artifact(
    artifact: str, conf: Mapping[str, str], settings: Iterable[str] = (*_OWN_CLASSES, _CLASS_PATH)
) -> bool:
    """Return whether settings for jars name an artifact.

    >>> names_artifact("delta-spark", {"spark.jars": "/mine/delta-spark_4.2_2.13-4.4.0.jar"})
    True
    """
    return any(artifact in conf.get(name, "") for name in settings)


def connect_conf(user: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session on a running Spark Connect server."""
    return {name: _ALWAYS[name] for name in _SESSION_SETTINGS} | dict(user)


def merge_settings(conf: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return settings overridden by others: lists are appended, all other settings are replaced."""
    result = dict(conf)
    for name, value in overrides.items():
        if name in _JOINED and result.get(name):
            result[name] = f"{result[name]}{_JOINED[name]}{value}"
        else:
            result[name] = value
    return result


def properties_text(conf: Mapping[str, str]) -> str:
    r"""Format settings as a Java properties file, which keeps them off the command line.

    >>> print(properties_text({"spark.hadoop.a b": "x\\y"}), end="")
    spark.hadoop.a\ b=x\\y
    """
    return "".join(f"{_escape_text(name, key=True)}={_escape_text(value)}\n" for name, value in conf.items())


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _escape_text(text: str, *, key: bool = False) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    if key:
        special |= {" ": "\\ ", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}
    escaped = "".join(special.get(char, char) for char in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
