"""The configuration of a copy, and the counts in its reports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_merge_provider.core.model import INPUT, KEY, OUTPUT, Config
from airflow_merge_provider.core.report import Measure

COUNTS = (Measure("copied", "rows", "Rows of the source that were copied.", "target"),)


class CopyConfig(Config):
    """A validated copy."""

    source: Annotated[str, Field(min_length=1), INPUT] = Field(description="The dataset that is copied.")
    target: Annotated[str, Field(min_length=1), OUTPUT] = Field(description="The Delta table of the copy.")
    primary_key: Annotated[str, Field(min_length=1), KEY] = Field(description="The column of the key.")
