"""Define the operators that maintain and check an SCD2 history: row versions with validity intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow.sdk import Asset, Context

from airflow_merge_provider.core.change_plan.saved_plan import PlanChoice
from airflow_merge_provider.core.merge_load.config import Scd2CheckConfig
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config, is_time
from airflow_merge_provider.operators._merge_load import LoadJobOperator, MergeLoadOperator


class Scd2Operator(MergeLoadOperator):
    """Keep every version of rows: close the versions of changed or absent rows, and insert new versions.

    Every argument but ``emit_asset`` is templated; ``MergeLoadOperator`` documents the
    arguments of all merge loads.

    :param boundary_timestamp: the start of the loaded versions and the end of absent ones; by default the
        partition date of the run, else the end of its data interval, else its scheduled time. It is the same
        in every try.
    :param active_record_timestamp: the end of the current versions; NULL by default.
    :param validity_column_names: the two columns that are added.
    :param row_version_column_name: the column that alone determines whether a row has changed.
    :param merge_key: versions are closed only if the load has other rows with their values in these columns.
    :param destination_scope: a SQL condition; only absent rows that match it are closed.
    :param natural_key: the column or columns that identify a record, whose versions form one history; the
        arguments below require it.
    :param mode: ``snapshot``: absent keys are deleted; ``changes``: absent keys stay unchanged.
    :param scope: where a snapshot deletes absent keys: a list of columns, or a SQL condition.
    :param effective_from: the start of validity of the rows: a time, or for changes the column with it.
    :param track: the columns whose change starts a new version; by default all.
    :param track_except: the columns whose change does not start a new version.
    :param overwrite: the columns that are overwritten in the current version.
    :param sequence_by: the column or columns whose highest values win among rows of one key and time.
    :param on_delete: ``close`` the version of a deleted key, ``ignore`` the deletion, ``mark`` it with an
        additional version, or ``purge`` all versions of the key.
    :param current_column: the name of a boolean column to add that flags current versions.
    :param deleted_column: the name of the boolean column that ``mark`` adds.
    :param surrogate_key_column: the name of a column to add that identifies a version.
    :param on_late: a load older than the stored versions: ``error``, or ``repair`` the history.
    :param max_close_ratio: the largest share of the current versions that may be closed without a successor.
    """

    strategy = "scd2"
    config_class = Scd2Config

    def __init__(
        self,
        *,
        boundary_timestamp: Any = None,
        active_record_timestamp: Any = None,
        validity_column_names: Sequence[str] = ("valid_from", "valid_to"),
        row_version_column_name: str | None = None,
        merge_key: str | Sequence[str] | None = None,
        destination_scope: str | None = None,
        natural_key: str | Sequence[str] | None = None,
        mode: str = "snapshot",
        scope: str | Sequence[str] | None = None,
        effective_from: Any = None,
        track: str | Sequence[str] | None = None,
        track_except: str | Sequence[str] | None = None,
        overwrite: str | Sequence[str] | None = None,
        sequence_by: str | Sequence[str] | None = None,
        on_delete: str = "close",
        current_column: str | None = None,
        deleted_column: str | None = None,
        surrogate_key_column: str | None = None,
        on_late: str = "error",
        max_close_ratio: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.boundary_timestamp = boundary_timestamp
        self.active_record_timestamp = active_record_timestamp
        self.validity_column_names = validity_column_names
        self.row_version_column_name = row_version_column_name
        self.merge_key = merge_key
        self.destination_scope = destination_scope
        self.natural_key = natural_key
        self.mode = mode
        self.scope = scope
        self.effective_from = effective_from
        self.track = track
        self.track_except = track_except
        self.overwrite = overwrite
        self.sequence_by = sequence_by
        self.on_delete = on_delete
        self.current_column = current_column
        self.deleted_column = deleted_column
        self.surrogate_key_column = surrogate_key_column
        self.on_late = on_late
        self.max_close_ratio = max_close_ratio
        self._declare_assets(self.target, [self.source])

    def _run_and_report(self, context: Context, approved: PlanChoice | None = None) -> dict[str, Any]:
        """Run the job; without ``boundary_timestamp`` with the time of the run, also after an approval."""
        if self.boundary_timestamp is None and not is_time(self.effective_from):
            self.boundary_timestamp = get_load_time(context)
        return super()._run_and_report(context, approved)


class Scd2CheckOperator(LoadJobOperator):
    """Fail if a table is not a valid SCD2 history: overlapping, empty, repeated or wrongly flagged versions.

    It reads the table that ``Scd2Operator`` has written, including its column names, and writes nothing.

    :param target: the history to check. (templated)
    :param source: the newest snapshot, whose keys must be those of the current versions. (templated)
    :param source_filter: a SQL condition; only the source rows that match it were loaded. (templated)
    """

    strategy = "scd2-check"
    guarded = False
    is_check = True
    is_only_writer = False
    config_class = Scd2CheckConfig

    def __init__(
        self,
        *,
        target: str | Asset,
        source: str | Mapping[str, Any] | Asset | None = None,
        source_filter: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"emit_asset": False, **kwargs})
        self.target = target
        self.source = source
        self.source_filter = source_filter
        self._declare_assets(None, [target, source])

    def _build_population(self, config: Any, marked: Sequence[str] = ()) -> None:
        """Return None: only the operators that write the history set its population flag."""


def get_load_time(context: Mapping[str, Any]) -> str | None:
    """Return the time that a run loads: its partition date, else its data interval's end, else its due time.

    It is the same in every try, and never the time at which the task happens to run.
    """
    run = context.get("dag_run")
    times = ((run, "partition_date"), (context, "data_interval_end"), (run, "run_after"))
    for owner, name in times:
        at = owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)
        if isinstance(at, datetime):
            return at.isoformat()
    return None
