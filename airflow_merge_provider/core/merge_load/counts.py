"""The counts in the reports of loads and of SCD2 checks."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("loaded", "rows", "Source rows that were loaded."),
    Measure("duplicates", "rows", "Source rows that were dropped as duplicates of another row."),
    Measure("opened", "versions", "Versions that were opened (SCD2)."),
    Measure("closed", "versions", "Versions that were closed (SCD2)."),
    Measure("reopened", "versions", "Closed versions that became valid again (SCD2)."),
    Measure("changed", "versions", "Versions whose end or values were updated in place (SCD2)."),
    Measure("removed", "versions", "Versions that a late or repeated load or a purge deleted (SCD2)."),
    Measure("elements_inserted", "rows", "Rows inserted into the tables of nested lists."),
    Measure("elements_deleted", "rows", "Rows deleted from the tables of nested lists."),
    Measure("tables", "tables", "Tables that the rows were dispatched to; 1 without `dispatch_by`."),
    Measure("tables_changed", "tables", "Tables that the run changed."),
)

CHECK_COUNTS = (
    Measure("versions", "versions", "Versions in the history."),
    Measure("keys", "keys", "Keys in the history."),
    Measure("empty", "versions", "Versions whose end is not after their start."),
    Measure("overlapping", "versions", "Versions that start before the previous version of their key ends."),
    Measure("valid_twice", "keys", "Keys with more than one valid version."),
    Measure("wrongly_current", "versions", "Versions whose current flag does not match their validity."),
    Measure("repeated", "versions", "Versions with the same values as the version that ends at their start."),
    Measure("surrogates_twice", "keys", "Surrogate keys of more than one version."),
    Measure("not_valid", "keys", "Keys of the source without a valid version."),
    Measure("not_loaded", "keys", "Keys with a valid version that are not in the source."),
)
