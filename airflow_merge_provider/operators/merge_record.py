"""The operator that merges many small files into good ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Self

from airflow.sdk import Asset

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_record.config import PLACES, MergeRecordConfig, warnings
from airflow_merge_provider.core.merge_record.measures import UNLIMITED, period_text
from airflow_merge_provider.core.merge_record.properties import from_properties
from airflow_merge_provider.operators._spark_job import RefusedArgumentsError, SparkJobOperator

_JSON = ("reader", "writer", "attributes", "attribute_sources", "partition_by")


class MergeRecordOperator(SparkJobOperator):
    """Merge the files of a landing folder, like with like, as NiFi's MergeRecord does.

    Each record comes out exactly once, and every output says why it was merged when it was.

    Every argument but ``emit_asset`` and ``spark_conn_id`` is templated. Sizes and periods are NiFi's texts
    (``"128 MB"``, ``"30 secs"``) or native values (bytes, ``timedelta``). ``full_refresh`` puts the files of
    open bins back into the queue.

    :param source: the folder where files wait.
    :param merged: the folder where merged files go, each with its attributes beside it.
    :param failure: the folder where the files of failed bins go.
    :param state_path: a folder of this operator alone, for its open bins, its plans and its ledger.
    :param reader: ``{"format": …, "schema": …, "options": {…}}`` of the files that wait, or a format alone.
    :param original: the folder where merged sources are moved to.
    :param original_action: ``move``, ``keep`` or ``delete``.
    :param writer: the same for merged files; by default the reader's format and the schema of the sources.
    :param merge_strategy: ``Bin-Packing Algorithm`` (by thresholds) or ``Defragment`` (by ``fragment.*``).
    :param correlation_attribute_name: an attribute that files of one bin have in common.
    :param attribute_strategy: ``Keep Only Common Attributes`` or ``Keep All Unique Attributes``.
    :param min_records: fewest records of a bin that is full.
    :param max_records: from so many records on a bin is full; a file is never cut. None is no limit.
    :param min_bin_size: fewest bytes of a bin that is full.
    :param max_bin_size: from so many bytes on a bin is full; None is no limit.
    :param max_bin_age: a bin that is older ends, full or not; None is never.
    :param max_bins: most open bins; one more ends the oldest. None is no limit.
    :param attributes: attributes computed for each file, as texts with ``${attribute}`` in them.
    :param attribute_sources: of ``metadata``, ``path``, ``sidecar``, the weakest first.
    :param partition_by: attributes by the fields they come from: files are split by these fields first.
    :param arrival_order: ``modified``, ``path`` or ``attribute:<name>``.
    :param settle_time: files younger than this wait for the next run.
    :param bin_age_from: ``arrival`` of a bin's first file, or ``first_seen`` by a run.
    :param complete_full_enough: end the bins that have their minimums, as NiFi does on an empty queue.
    :param flush: end every open bin.
    :param schema_identity: compare schemas by their fields (``canonical``) or by their ``text``.
    :param schema_merge: ``none``, or ``union``: files of different schemas share bins.
    :param fragment_index_policy: ``order``, ``ignore`` or ``strict``.
    :param failure_scope: whether a malformed record fails the whole ``bin`` or its ``flowfile`` alone.
    """

    job = "merge_record"
    config_class = MergeRecordConfig
    config_fields = (
        "source",
        "merged",
        "failure",
        "state_path",
        "reader",
        "original",
        "original_action",
        "writer",
        "merge_strategy",
        "correlation_attribute_name",
        "attribute_strategy",
        "min_records",
        "max_records",
        "min_bin_size",
        "max_bin_size",
        "max_bin_age",
        "max_bins",
        "attributes",
        "attribute_sources",
        "partition_by",
        "arrival_order",
        "settle_time",
        "bin_age_from",
        "complete_full_enough",
        "flush",
        "schema_identity",
        "schema_merge",
        "fragment_index_policy",
        "failure_scope",
    )
    template_fields: Sequence[str] = (*config_fields, *SparkJobOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **SparkJobOperator.template_fields_renderers,
        **dict.fromkeys(_JSON, "json"),
    }

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
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        super().__init__(**kwargs)
        for name in self.config_fields:
            setattr(self, name, given[name])
        self.max_bin_age = period_text(max_bin_age)
        self.settle_time = period_text(settle_time)
        # What is None is not handed on, and would come back as the default.
        self.max_records = UNLIMITED if max_records is None else max_records
        self.max_bins = UNLIMITED if max_bins is None else max_bins
        self._declare(merged, [source])

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, Any], environment: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Self:
        """Make the operator of NiFi's own properties, old names or new; ``kwargs`` win over them.

        ``environment`` holds what ``${name}`` stands for in the two properties that NiFi evaluates.

        :raises ConfigError: with every problem of the properties.
        """
        try:
            arguments = from_properties(properties, environment)
        except ConfigError as error:
            raise RefusedArgumentsError(error.message, error.problems) from None
        return cls(**{**arguments, **kwargs})

    def references(self, config: MergeRecordConfig) -> dict[str, str]:
        return {name: place for name in PLACES if (place := getattr(config, name)) is not None}

    def warnings(self, config: MergeRecordConfig) -> list[str]:
        return warnings(config)
