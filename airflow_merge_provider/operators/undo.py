"""Define the operator that undoes runs of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Asset

from airflow_merge_provider.core.undo.config import UndoConfig
from airflow_merge_provider.operators._spark_job import SparkJobOperator


class UndoOperator(SparkJobOperator):
    """Undo the newest run of a target that is in force, in one commit: rows, offsets, side tables and flags.

    The next run of the target does the work of the undone run again, from its sources as they are then. A
    second undo undoes the run before. Put this operator in a DAG that people start, with ``run`` as a param.

    :param target: the Delta table whose runs are undone, or the ``merged`` folder or the ``state_path`` of a
        merge record. (templated)
    :param run: the ID or the number of a run, which is undone together with all later ones; the ID of an undo
        brings the runs back that it has undone. (templated)
    :param to_version: the version of the target to restore, together with the changes of other programs; the
        number of the state of a merge record.
        (templated)
    :param only: undo the run alone and keep all later ones: a load of an SCD2 history with ``natural_key``.
        (templated)
    """

    job = "undo"
    guarded = False
    config_class = UndoConfig

    def __init__(
        self,
        *,
        target: str | Asset,
        run: str | None = None,
        to_version: int | str | None = None,
        only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.run = run
        self.to_version = to_version
        self.only = only
        self._declare_assets(target, [])

    def _build_population(self, config: Any, marked: Sequence[str] = ()) -> None:
        """Return None: the target has the flag that it had before the run."""
