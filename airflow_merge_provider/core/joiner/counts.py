"""The counts of a Joiner's report."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("records_in", "rows", "Rows of all inputs together."),
    Measure("outputs", "rows", "Rows that the join returned.", "target"),
    Measure("unmatched", "rows", "Rows of the table of unmatched rows; 0 if there is none.", "target"),
)
