"""Find out whether a catalog keeps its tables when a Spark that starts on this machine ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.spark_process.jvm.spark_defaults import find_site_file, read_settings

_CATALOG = "spark.sql.catalog."
_SESSION_CATALOG = "spark_catalog"
# The class that this package sets: it adds Delta to Spark's own catalog.
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
# Where Hive has its metastore; without one, it is a database in the folder of the Spark process.
_METASTORES = (
    "spark.hadoop.hive.metastore.uris",
    "spark.hive.metastore.uris",
    "spark.hadoop.javax.jdo.option.ConnectionURL",
)
_METASTORE_HINT = (
    "use a location or a bare ID, set a metastore or spark.sql.catalog.<name> in the Spark settings, or run "
    "on a cluster or a Spark Connect server that has a catalog"
)


def find_catalog_problems(
    references: Iterable[tuple[str, Any]], warehouse: str | None, conf: Mapping[str, str]
) -> list[Problem]:
    """Return a problem for every catalog table that ends with a Spark on this machine.

    Such a table is registered in the memory of Spark, and its files are in a temporary folder.

    :param references: the path that errors name, and the dataset, of each reference.
    :param conf: the Spark settings of the run; those of this machine are added.
    """
    settings: Mapping[str, str] | None = None
    problems = []
    for path, ref in references:
        table = _find_table(ref, warehouse)
        if table is None:
            continue
        settings = settings or {**read_settings(), **conf}
        if not _keeps_tables(table, settings):
            message = (
                f"{table!r} is a catalog table, and the catalog of Spark on this machine ends with Spark"
            )
            problems.append(Problem(path, "catalog", message, _METASTORE_HINT))
    return problems


def _find_table(ref: Any, warehouse: str | None) -> str | None:
    try:
        return resolve_dataset(ref, warehouse).table
    except ConfigError:
        # Another check reports the error with its path.
        return None


def _keeps_tables(table: str, settings: Mapping[str, str]) -> bool:
    first, *parts = table.split(".")
    default = settings.get("spark.sql.defaultCatalog", _SESSION_CATALOG)
    names_catalog = len(parts) > 1 or f"{_CATALOG}{first}" in settings
    catalog = first if names_catalog else default
    if catalog.lower() == _SESSION_CATALOG:
        catalog = _SESSION_CATALOG
    implementation = settings.get(f"{_CATALOG}{catalog}", _DELTA_CATALOG)
    if implementation != _DELTA_CATALOG:
        return True
    return catalog == _SESSION_CATALOG and _has_metastore(settings)


def _has_metastore(settings: Mapping[str, str]) -> bool:
    if settings.get("spark.sql.catalogImplementation", "").lower() != "hive":
        return False
    return any(settings.get(name) for name in _METASTORES) or find_site_file("hive-site.xml") is not None
