"""Whether OpenLineage is used, and the run that it shows as the parent of a Spark job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import Context

_SECTION, _PARENT_OPTION = "openlineage", "spark_inject_parent_job_info"


def is_openlineage_enabled() -> bool:
    """Return whether OpenLineage is installed, and Airflow sends events."""
    try:
        from airflow.providers.openlineage.conf import is_disabled  # noqa: PLC0415 - lineage is optional
    except ImportError:
        return False
    return not is_disabled()


def add_parent_run(
    spark_conf: Mapping[str, Any] | None, context: Context, *, requested: bool | None
) -> Mapping[str, Any] | None:
    """Return Spark settings with the task as the parent of the Spark job in OpenLineage.

    The settings are returned unchanged if OpenLineage is not used, or if they name a parent themselves.

    :param requested: None for what ``[openlineage] spark_inject_parent_job_info`` says.
    """
    if requested is None:
        requested = conf.getboolean(_SECTION, _PARENT_OPTION, fallback=False)
    if not requested or not is_openlineage_enabled():
        return spark_conf
    from airflow.providers.common.compat.openlineage.utils.spark import (  # noqa: PLC0415 - lineage is optional
        inject_parent_job_information_into_spark_properties,
    )

    result: dict[str, Any] = inject_parent_job_information_into_spark_properties(
        dict(spark_conf or {}), context
    )
    return result
