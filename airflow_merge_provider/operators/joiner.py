"""Define the operator that joins any number of inputs into one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from airflow.sdk import Asset

from airflow_merge_provider.core.dataset import split_alias
from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.joiner.config import JoinerConfig, from_stage
from airflow_merge_provider.core.joiner.plan import preview_join
from airflow_merge_provider.operators._arguments import RefusedArgumentsError, as_text, is_literal
from airflow_merge_provider.operators._spark_job import SparkJobOperator


class JoinerOperator(SparkJobOperator):
    """Join any number of inputs by their keys: required inputs with inner joins, the others with outer joins.

    Every argument but ``emit_asset`` is templated. Lists may be written as in CDAP
    (``"customers.id, purchases.store as shop"``) or as lists.

    :param inputs: the datasets to join, ``{"customers": <dataset>, …}``, in the order of the output.
    :param target: the dataset to write: a bare id, a catalog table, a location or an ``Asset``.
    :param target_format: the storage format of the target: ``delta``.
    :param write_mode: ``overwrite`` or ``append``.
    :param join_keys: the fields to compare, ``"a.x = b.x & a.y = b.y"``, or a list of
        ``{"a": "x", "b": "x"}``.
    :param join_type: ``innerjoin``, ``outerjoin``, ``leftouterjoin``, ``rightouterjoin``, ``fullouterjoin``
        or ``crossjoin``.
    :param num_of_inputs: the expected number of inputs.
    :param required_inputs: the inputs in which each output row must have a match; without any, a full outer
        join.
    :param selected_fields: the output columns, ``"a.x, b.y as z"``.
    :param fields_to_select: the output columns, with unchanged names.
    :param fields_to_drop: the columns to leave out; all others are in the output.
    :param fields_to_rename: new column names, ``"a.x:z"``.
    :param join_null_keys: whether a NULL in a key matches a NULL.
    :param in_memory_inputs: the small inputs, which are broadcast to every executor.
    :param condition_type: ``basic`` (keys) or ``advanced`` (an expression, two inputs).
    :param condition_expression: the SQL join condition.
    :param input_aliases: names of the inputs inside the expression, ``"input=alias;other=alias"``.
    :param distribution_enabled: whether the rows of a skewed input are distributed with a salt.
    :param distribution_factor: the number of parts over which a key is distributed.
    :param distribution_stage_name: the skewed input.
    :param num_partitions: the number of shuffle partitions.
    :param output_schema: the required output fields, each ``[name, type, nullable]``.
    :param indicator: the name of a column that lists the inputs that each row comes from.
    :param key_columns: names of leading columns with the key from whichever input has it; one per key clause.
    :param unmatched: a dataset for the input rows that are in no output row.
    :param expect: the key cardinality per input: ``one_to_one``, ``one_to_many``, ``many_to_one``; and named
        conditions on the rows of inputs or on the changed rows.
    """

    job = "joiner"
    config_class = JoinerConfig

    def __init__(
        self,
        *,
        inputs: Mapping[str, str | Asset | Mapping[str, Any]] | Sequence[str],
        target: str | Asset,
        target_format: str = "delta",
        write_mode: str = "overwrite",
        join_keys: str | Sequence[Any] | Mapping[str, str] | None = None,
        join_type: str | None = None,
        num_of_inputs: int | str | None = None,
        required_inputs: str | Sequence[str] | None = None,
        selected_fields: str | Sequence[Any] | None = None,
        fields_to_select: str | Sequence[Any] | None = None,
        fields_to_drop: str | Sequence[Any] | None = None,
        fields_to_rename: str | Sequence[Any] | Mapping[str, str] | None = None,
        join_null_keys: bool | str = True,
        in_memory_inputs: str | Sequence[str] | None = None,
        condition_type: str = "basic",
        condition_expression: str | None = None,
        input_aliases: str | Mapping[str, str] | None = None,
        distribution_enabled: bool | str = False,
        distribution_factor: int | str | None = None,
        distribution_stage_name: str | None = None,
        num_partitions: int | str | None = None,
        output_schema: Sequence[Any] | Mapping[str, str] | None = None,
        indicator: str | None = None,
        key_columns: str | Sequence[str] | None = None,
        unmatched: str | Asset | None = None,
        expect: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.inputs = inputs
        self.target = target
        self.target_format = target_format
        self.write_mode = write_mode
        self.join_keys = join_keys
        self.join_type = join_type
        self.num_of_inputs = num_of_inputs
        self.required_inputs = required_inputs
        self.selected_fields = selected_fields
        self.fields_to_select = fields_to_select
        self.fields_to_drop = fields_to_drop
        self.fields_to_rename = fields_to_rename
        self.join_null_keys = join_null_keys
        self.in_memory_inputs = in_memory_inputs
        self.condition_type = condition_type
        self.condition_expression = condition_expression
        self.input_aliases = input_aliases
        self.distribution_enabled = distribution_enabled
        self.distribution_factor = distribution_factor
        self.distribution_stage_name = distribution_stage_name
        self.num_partitions = num_partitions
        self.output_schema = output_schema
        self.indicator = indicator
        self.key_columns = key_columns
        self.unmatched = unmatched
        self.expect = expect
        self._declare_assets(target, _list_datasets(inputs))

    @classmethod
    def from_stage(cls, stage: Mapping[str, Any], **kwargs: Any) -> Self:
        """Build the operator from a Joiner stage of a CDAP pipeline, or its plugin; ``kwargs`` override it.

        Other stages of the pipeline define the inputs' datasets and the target, so ``inputs`` and ``target``
        are required arguments.

        :raises ConfigError: with every problem of the stage.
        """
        config = from_stage(stage)
        config |= {name: kwargs[name] for name in ("inputs", "target") if name in kwargs}
        if is_literal(config):
            try:
                JoinerConfig.parse(as_text(config))
            except ConfigError as error:
                raise RefusedArgumentsError(error.message, error.problems) from None
        return cls(**{**JoinerConfig.rename_properties(config), **kwargs})

    def preview(self, inputs_schemas: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schemas of all inputs and of the output, without reading anything.

        ``inputs_schemas`` has for every input ``{"id": "int", "name": "string?"}`` (``?`` is nullable) or
        ``[["id", "int", False], …]``. Arguments have to be literal or rendered.

        :raises ConfigError: with every problem of the arguments and of the schemas.
        """
        _, arguments = self._parse_config()
        return preview_join(arguments, inputs_schemas)


def _list_datasets(inputs: Any) -> list[Any]:
    """Return the datasets of the inputs that are known while a DAG is parsed."""
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    if isinstance(inputs, (list, tuple)):
        return [split_alias(entry)[0] for entry in inputs if isinstance(entry, str) and entry.strip()]
    return []
