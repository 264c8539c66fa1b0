"""Define the operator that merges entities of several datasets into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from airflow.sdk import Asset, Context

from airflow_merge_provider.core.dataset import split_alias
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig, from_pipe, list_awaited
from airflow_merge_provider.hooks.population import get_status, list_missing, with_marks
from airflow_merge_provider.hooks.warehouse import WarehouseHook
from airflow_merge_provider.operators._arguments import RefusedArgumentsError, is_literal
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.triggers.dataset_populated import DatasetPopulatedTrigger

_LONGEST_WAIT = timedelta(days=7)


class MergeSourceOperator(SparkJobOperator):
    """Merge the entities of several datasets: entities that share a value by a rule become one entity.

    Every argument but ``emit_asset`` is templated.

    :param target: the dataset to write: a bare id, a catalog table, a location or an ``Asset``.
    :param datasets: the datasets to merge, in order, as ``"<dataset> <alias>"`` or ``(Asset(…), "<alias>")``.
    :param equality: rules ``["eq", left, right]`` over ``<alias>.<property>``.
    :param equality_sets: lists of expressions; each pair of neighbours in a list is a rule.
    :param identity: ``composite`` (offsets and ids of all members) or ``first`` (the id of the first).
    :param strategy: how properties are merged: ``default``, ``compact`` or ``list``.
    :param version: 2, or 1, which is deprecated.
    :param initial_datasets: the datasets that must be populated first; by default all.
    :param ignore_non_existent_datasets: whether a dataset that does not exist counts as populated.
    :param max_merged: the maximum number of entities merged into one (version 2); by default 50 000.
    :param supports_signalling: whether a change of a dataset starts a run.
    :param require_populated_input: whether a run waits until its input is populated.
    :param if_source_empty: ``accept`` or ``fail`` when a full run finds no entities.
    :param include_internal_properties: whether strategy ``list`` keeps properties that start with ``_``.
    :param equality_sets_mode: ``neighbours`` or ``all_pairs``.
    :param on_config_change: ``refresh`` or ``fail`` when the rules differ from those of the last run.
    :param reset: write the target as on a first run; its readers have to start over.
    :param max_key_fanout: the maximum number of entities that one value of a rule may link, or limits by
        rule, such as ``{"a.mail = b.mail": 10, "*": 1000}``.
    :param on_over_merge: ``fail``, or ``quarantine``: values above the limit link nothing and are listed;
        also by rule.
    :param overrides: the dataset of manual decisions about which entities are the same, or are not.
    :param stable_id: add an id, ``$stable_id``, that is stable across cluster merges and splits.
    :param replaced_by: record the successors of ids that no longer exist, and list each such event.
    :param label_column: the property that names golden records in plans, approvals and reports.
    :param expect: named conditions on the rows of the source or on the changed rows, and what to do with rows
        that do not meet them: ``fail``, ``warn`` or ``quarantine``.
    :param metrics: the dataset to which each run adds a row with cluster quality metrics.
    :param values: ``entity`` (one VARIANT) or ``columns`` (lists of all members' values, by property).
    :param survivorship: rules that choose one surviving value, by property or group of properties; the key
        ``"*"`` has the rule of all others.
    :param change_detection: ``auto``, ``sequence``, ``change_feed`` or ``hash``: how a run detects changes.
    :param id_column: the column of the datasets that contains the id.
    :param deleted_column: the column that flags deleted entities.
    :param sequence_column: the column that increases with every version of an entity.
    :param entity_column: the VARIANT or JSON column with whole entities, if there is one.
    :param schema_evolution: ``add``: a column that is no longer in a dataset is an error; or
        ``allow_missing``.
    """

    job = "merge_source"
    config_class = MergeSourceConfig

    def __init__(
        self,
        *,
        target: str | Asset,
        datasets: Sequence[str | tuple[Asset, str]],
        equality: Sequence[Any] = (),
        equality_sets: Sequence[Sequence[Any]] = (),
        identity: str = "composite",
        strategy: str = "default",
        version: int | str = 2,
        initial_datasets: Sequence[str] | None = None,
        ignore_non_existent_datasets: bool | str = True,
        max_merged: int | str | None = None,
        supports_signalling: bool | str | None = None,
        require_populated_input: bool | str = False,
        if_source_empty: str = "accept",
        include_internal_properties: bool | str = False,
        equality_sets_mode: str = "neighbours",
        on_config_change: str = "refresh",
        reset: bool | str = False,
        max_key_fanout: int | str | Mapping[str, int] | None = None,
        on_over_merge: str | Mapping[str, str] = "fail",
        overrides: str | Asset | None = None,
        stable_id: bool | str = False,
        replaced_by: bool | str = False,
        label_column: str | None = None,
        metrics: str | Asset | None = None,
        expect: Mapping[str, Any] | None = None,
        values: str = "entity",
        survivorship: Mapping[str, Any] | None = None,
        change_detection: str = "auto",
        id_column: str = "_id",
        deleted_column: str = "_deleted",
        sequence_column: str = "_updated",
        entity_column: str | None = None,
        schema_evolution: str = "add",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target, self.datasets, self.version = target, datasets, version
        self.equality, self.equality_sets = equality, equality_sets
        self.equality_sets_mode, self.max_merged = equality_sets_mode, max_merged
        self.identity, self.strategy = identity, strategy
        self.initial_datasets = initial_datasets
        self.ignore_non_existent_datasets = ignore_non_existent_datasets
        self.supports_signalling = supports_signalling
        self.require_populated_input, self.if_source_empty = require_populated_input, if_source_empty
        self.include_internal_properties = include_internal_properties
        self.on_config_change, self.reset = on_config_change, reset
        self.max_key_fanout, self.on_over_merge = max_key_fanout, on_over_merge
        self.overrides, self.metrics = overrides, metrics
        self.expect = expect
        self.stable_id, self.replaced_by, self.label_column = stable_id, replaced_by, label_column
        self.values, self.survivorship = values, survivorship
        self.change_detection = change_detection
        self.id_column, self.deleted_column = id_column, deleted_column
        self.sequence_column, self.entity_column = sequence_column, entity_column
        self.schema_evolution = schema_evolution
        self._declare_assets(target, [*_list_refs(datasets), *filter(None, [overrides])])

    @classmethod
    def from_pipe(cls, pipe: Mapping[str, Any], **kwargs: Any) -> Self:
        """Build the operator from a Sesam pipe, or from its merge source alone; ``kwargs`` override the pipe.

        :raises ConfigError: with every problem of the pipe.
        """
        config = from_pipe(pipe)
        if is_literal(config):
            try:
                MergeSourceConfig.parse({**config, **{k: kwargs[k] for k in ("version",) if k in kwargs}})
            except ConfigError as error:
                raise RefusedArgumentsError(error.message, error.problems) from None
        arguments = {name: value for name, value in config.items() if name in cls.config_fields}
        return cls(**{**arguments, **kwargs})

    def execute_when_populated(self, context: Context, event: Any = None) -> dict[str, Any]:
        """Run the job after the wait for the sources."""
        return self._run_and_report(context)

    def _await_sources(self, config: MergeSourceConfig) -> None:
        """Wait in the triggerer, without a worker slot, until the source is populated."""
        refs = list_awaited(config) if config.require_populated_input else ()
        ignore = config.ignore_non_existent_datasets
        statuses = get_status(
            WarehouseHook(self.merge_store_conn_id, warehouse=self.warehouse), refs, warehouse=self.warehouse
        )
        missing = list_missing(with_marks(statuses, ignore_non_existent=ignore), ignore_non_existent=ignore)
        # The job checks catalog tables, which only Spark can read, and fails if they are not populated.
        if all(status.origin == "catalog" for status in missing):
            return
        for status in missing:
            self.log.info("waiting: %s", status)
        tables = [ref for ref, status in zip(refs, statuses, strict=True) if status.origin != "catalog"]
        self.defer(
            trigger=DatasetPopulatedTrigger(
                datasets=tables,
                ignore_non_existent_datasets=ignore,
                warehouse=self.warehouse,
                merge_store_conn_id=self.merge_store_conn_id,
            ),
            method_name=self.execute_when_populated.__name__,
            timeout=_LONGEST_WAIT,
        )

    def list_schedule_warnings(self, config: MergeSourceConfig) -> list[str]:
        """Return warnings if the schedule of a hand-written DAG does not match ``supports_signalling``."""
        timetable = self.dag.timetable if self.has_dag() else None  # type: ignore[no-untyped-call]
        signalled = getattr(timetable, "asset_condition", None) is not None
        if config.supports_signalling and not signalled:
            return ["supports_signalling: is true, but the DAG has no asset schedule, so no change starts it"]
        if config.supports_signalling is False and signalled:
            return ["supports_signalling: is false, but the asset schedule of the DAG starts it on changes"]
        return []


def _list_refs(datasets: Any) -> list[Any]:
    """Return the datasets without their aliases."""
    if not isinstance(datasets, (list, tuple)):
        return []
    return [
        split_alias(entry)[0] if isinstance(entry, str) and entry.strip() else entry[0]
        for entry in datasets
        if entry and isinstance(entry, (str, tuple))
    ]
