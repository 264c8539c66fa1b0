"""The counts in the reports of loads and of SCD2 checks."""

from __future__ import annotations

from airflow_merge_provider.core.report import Measure

COUNTS = (
    Measure("loaded", "rows", "Rows of the source that were loaded."),
    Measure("duplicates", "rows", "Rows of the source that others of the same key replaced."),
    Measure("opened", "versions", "Versions that began (SCD2)."),
    Measure("closed", "versions", "Versions that ended (SCD2)."),
    Measure("reopened", "versions", "Ended versions that became valid again (SCD2)."),
    Measure("changed", "versions", "Versions whose time or untracked columns changed (SCD2)."),
    Measure("removed", "versions", "Versions that a late load made superfluous (SCD2)."),
    Measure("elements_inserted", "rows", "Rows inserted into the tables of nested lists."),
    Measure("elements_deleted", "rows", "Rows deleted from the tables of nested lists."),
    Measure("tables", "tables", "Tables that the rows were dispatched to, 1 without `dispatch_by`."),
    Measure("tables_changed", "tables", "Tables that the run changed."),
)

CHECK_COUNTS = (
    Measure("versions", "versions", "Versions of the history."),
    Measure("keys", "keys", "Keys of the history."),
    Measure("empty", "versions", "Versions that do not end after they begin."),
    Measure("overlapping", "versions", "Versions that begin before the one before them has ended."),
    Measure("valid_twice", "keys", "Keys with more than one valid version."),
    Measure("wrongly_current", "versions", "Versions whose current flag contradicts their end."),
    Measure("repeated", "versions", "Versions with the values of the version that ends where they begin."),
    Measure("surrogates_twice", "keys", "Surrogate keys of more than one version."),
    Measure("not_valid", "keys", "Keys of the source without a valid version."),
    Measure("not_loaded", "keys", "Keys with a valid version that the source does not have."),
)
