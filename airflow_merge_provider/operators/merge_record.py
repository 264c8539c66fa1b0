"""Define the operator that merges many small files into larger ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from airflow.sdk import Asset, Context

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, MergeError
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.properties import UNLIMITED, from_properties, period_text
from airflow_merge_provider.hooks.warehouse import find_warehouse
from airflow_merge_provider.operators._arguments import RefusedArgumentsError
from airflow_merge_provider.operators._dag import is_by_assets_alone, longest_pause, run_token
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.triggers.landing import LandingTrigger

NEXT_EXPIRY = "next_expiry"


class MergeRecordOperator(SparkJobOperator):
    """Merge the files of a landing folder that have the same schema and group, as NiFi's MergeRecord does.

    Each record is written exactly once, and every output records the reason for its merge.

    Every argument but ``emit_asset`` and ``spark_conn_id`` is templated. Sizes and periods are NiFi's strings
    (``"128 MB"``, ``"30 secs"``) or native values (bytes, ``timedelta``). ``full_refresh`` puts the files of
    open bins back into the queue.

    :param source: the folder of the incoming files.
    :param merged: the folder for merged files, each with its attributes in a file beside it.
    :param failure: the folder for the files of failed bins.
    :param state_path: a folder for this operator only, with its open bins, plans and ledger.
    :param reader: ``{"format": …, "schema": …, "options": {…}}`` of the incoming files, or a format alone.
    :param original: the folder to which merged source files are moved.
    :param original_action: ``move``, ``keep`` or ``delete``.
    :param writer: the same for merged files; by default the reader's format and the schema of the sources.
    :param merge_strategy: ``Bin-Packing Algorithm`` (by thresholds) or ``Defragment`` (by ``fragment.*``).
    :param correlation_attribute_name: an attribute whose value is the same for all files of a bin.
    :param attribute_strategy: ``Keep Only Common Attributes`` or ``Keep All Unique Attributes``.
    :param min_records: the minimum number of records of a full bin.
    :param max_records: the number of records from which a bin is full; files are not split. None is no limit.
    :param min_bin_size: the minimum size of a full bin in bytes.
    :param max_bin_size: the size in bytes from which a bin is full; None is no limit.
    :param max_bin_age: the age at which a bin is merged even if it is not full; None is no limit.
    :param max_bins: the maximum number of open bins; the oldest one above it is merged. None is no limit.
    :param attributes: attributes to compute for each file, as strings with ``${attribute}`` placeholders.
    :param attribute_sources: of ``metadata``, ``path``, ``sidecar``, lowest precedence first.
    :param partition_by: attributes by the fields they come from: files are split by these fields first.
    :param arrival_order: ``modified``, ``path`` or ``attribute:<name>``.
    :param settle_time: the minimum age of a file; younger files wait for the next run.
    :param bin_age_from: ``arrival`` of a bin's first file, or ``first_seen`` by a run.
    :param complete_full_enough: merge bins that reach their minimums, as NiFi does when its queue is empty.
    :param flush: merge every open bin.
    :param schema_identity: compare schemas by their fields (``canonical``) or by their ``text``.
    :param schema_merge: ``none``, or ``union``: files with different schemas share bins.
    :param fragment_index_policy: ``order``, ``ignore`` or ``strict``.
    :param failure_scope: whether a malformed record fails the whole ``bin`` or only its ``flowfile``.
    :param validate: check for malformed records ``on_arrival`` of a file or ``on_merge`` of its bin.
    :param size_basis: how sizes are measured: as ``input``, ``estimated_output`` or ``uncompressed``.
    :param trust_record_count: use the ``record.count`` of a sidecar without counting.
    :param expect: named conditions on the records of incoming files, and what to do with files whose records
        do not meet them.
    :param fail_on: conditions that fail a run before it moves a file: ``failed-files``, ``missing-source``.
    :param deferrable: wait in the triggerer until there are new files or a bin expires.
    :param poll_interval: seconds between two checks while waiting.
    """

    job = "merge_record"
    guarded = False
    is_only_writer = False
    config_class = MergeRecordConfig

    def __init__(
        self,
        *,
        source: str | Asset,
        merged: str | Asset,
        failure: str,
        state_path: str,
        reader: str | Mapping[str, Any],
        original: str | None = None,
        original_action: str = "move",
        writer: str | Mapping[str, Any] | None = None,
        merge_strategy: str = "Bin-Packing Algorithm",
        correlation_attribute_name: str | None = None,
        attribute_strategy: str = "Keep Only Common Attributes",
        min_records: int | str = 1,
        max_records: int | str | None = 1000,
        min_bin_size: int | str = 0,
        max_bin_size: int | str | None = None,
        max_bin_age: str | timedelta | None = None,
        max_bins: int | str | None = 10,
        attributes: Mapping[str, str] | None = None,
        attribute_sources: Sequence[str] = ("metadata", "path", "sidecar"),
        partition_by: Mapping[str, str] | None = None,
        arrival_order: str = "modified",
        settle_time: str | timedelta | None = None,
        bin_age_from: str = "arrival",
        complete_full_enough: bool | str = True,
        flush: bool | str = False,
        schema_identity: str = "canonical",
        schema_merge: str = "none",
        fragment_index_policy: str = "order",
        failure_scope: str = "bin",
        validate: str = "on_arrival",
        size_basis: str = "input",
        trust_record_count: bool | str = False,
        expect: Mapping[str, Any] | None = None,
        fail_on: Sequence[str] | str = (),
        deferrable: bool = False,
        poll_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        arguments = dict(locals())
        super().__init__(**kwargs)
        for name in self.config_fields:
            setattr(self, name, arguments[name])
        self.max_bin_age = period_text(max_bin_age)
        self.settle_time = period_text(settle_time)
        # A None argument is not passed on, and the job would use the default limit.
        self.max_records = UNLIMITED if max_records is None else max_records
        self.max_bins = UNLIMITED if max_bins is None else max_bins
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._declare_assets(merged, [source])

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, Any], environment: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Self:
        """Build the operator from NiFi's properties, with old or new names; ``kwargs`` override them.

        ``environment`` has the values of ``${name}`` in the two properties that NiFi evaluates.

        :raises ConfigError: with every problem of the properties.
        """
        try:
            arguments = from_properties(properties, environment)
        except ConfigError as error:
            raise RefusedArgumentsError(error.message, error.problems) from None
        return cls(**{**arguments, **kwargs})

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job; with ``deferrable``, wait first until there is something to do."""
        if self.deferrable and not self.dry_run_only and not self.full_refresh:
            trigger = self._build_trigger(context)
            if trigger is not None and trigger.find_reason() is None:
                self.log.info("Nothing to merge: waiting until a file arrives or a bin expires")
                self.defer(trigger=trigger, method_name="execute_when_due", timeout=self.execution_timeout)
        return self._merge_files(context)

    def execute_when_due(self, context: Context, event: str) -> dict[str, Any]:
        """Run the job after the wait."""
        self.log.info("Running the merge: %s", event)
        return self._merge_files(context)

    def _merge_files(self, context: Context) -> dict[str, Any]:
        report = super().execute(context)
        # The full report: the returned one may have been truncated.
        details = {} if self._report is None else self._report.details
        context["ti"].xcom_push(key=NEXT_EXPIRY, value=details.get(NEXT_EXPIRY))
        return report

    def _build_trigger(self, context: Context) -> LandingTrigger | None:
        """Return the trigger to wait with; None if the arguments are invalid, which the run reports."""
        self._render_natively()
        try:
            _, raw_config = self._parse_config()
            references = MergeRecordConfig.parse(raw_config).list_datasets()
            warehouse = self.warehouse or find_warehouse(self.merge_store_conn_id)
            paths = {
                name: resolve_dataset(reference, warehouse, at=name).path
                for name, reference in references.items()
            }
        except MergeError:
            return None
        return LandingTrigger(
            {**raw_config, **paths},
            self.poll_interval,
            run_token(context).model_dump(),
            self.merge_store_conn_id,
            warehouse,
        )

    def list_schedule_warnings(self, config: MergeRecordConfig) -> list[str]:
        """Return warnings if the DAG runs too rarely for the maximum age of bins."""
        if config.max_bin_age is None or self.deferrable or not self.has_dag():  # type: ignore[no-untyped-call]
            return []
        timetable = self.dag.timetable
        if is_by_assets_alone(timetable):
            return ["only assets trigger this DAG: after the last file, no run merges bins by max_bin_age"]
        pause = longest_pause(timetable)
        if pause is None or 2 * pause <= timedelta(microseconds=config.max_bin_age.microseconds):
            return []
        age = config.max_bin_age.text
        return [
            f"up to {pause} may pass between two runs, over half of max_bin_age {age}: schedule more runs"
        ]
