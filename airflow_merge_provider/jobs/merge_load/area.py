"""Where rows that the load does not have count as absent: everywhere, in some groups, or inside a scope."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, functions as F

from airflow_merge_provider.core.merge_load.conditions import filled
from airflow_merge_provider.jobs.merge_load.changes import PREFIX
from airflow_merge_provider.jobs.merge_load.columns import fulfilling, refer
from airflow_merge_provider.jobs.sql import column

INSIDE = f"{PREFIX}inside"
_TARGET = "target_table"
_LOADED = "merge_load_staging"


class Limited(Protocol):
    """A configuration that may limit the area."""

    @property
    def merge_key(self) -> tuple[str, ...] | None: ...

    @property
    def destination_scope(self) -> str | None: ...


def marked(stored: DataFrame, loaded: DataFrame, config: Limited) -> DataFrame:
    """Say of each stored row whether it is ``INSIDE``; a scope comes before groups. Source: spec §6.1."""
    if config.destination_scope is not None:
        inside = in_scope(stored, loaded, config.destination_scope)
        rest = in_scope(stored, loaded, f"NOT coalesce({config.destination_scope}, false)")
        inside, rest = inside.withColumn(INSIDE, F.lit(True)), rest.withColumn(INSIDE, F.lit(False))
        return inside.unionByName(rest)
    if config.merge_key is not None:
        groups = loaded.select(*refer(config.merge_key)).distinct().withColumn(INSIDE, F.lit(True))
        found = stored.join(groups, list(config.merge_key), "left")
        return found.withColumn(INSIDE, F.coalesce(column(INSIDE), F.lit(False)))
    return stored.withColumn(INSIDE, F.lit(True))


def within(stored: DataFrame, loaded: DataFrame, config: Limited) -> DataFrame:
    """Give the stored rows of the area."""
    return marked(stored, loaded, config).where(column(INSIDE)).drop(INSIDE)


def in_scope(stored: DataFrame, loaded: DataFrame, condition: str) -> DataFrame:
    """Give the stored rows that fulfil a condition of the user's."""
    loaded.createOrReplaceTempView(_LOADED)
    text = filled(condition, table=_TARGET, staging_table=_LOADED)
    return fulfilling(stored.alias(_TARGET), text, "destination_scope")
