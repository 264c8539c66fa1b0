"""The configuration of MergeRecord: NiFi's properties, and the locations of input and output files.

Source: docs/semantics/merge_record.md, Properties.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.core.expectations.config import find_problems, parse_expectations
from airflow_merge_provider.core.file_options import (
    INFERRING,
    MERGE_RECORD,
    find_lossy_options,
    find_missing_options,
    find_option,
    find_option_problems,
    read_options,
)
from airflow_merge_provider.core.merge_record import flowfile
from airflow_merge_provider.core.merge_record.properties import (
    Period,
    data_size,
    parse_limit,
    parse_period,
    positive_integer,
)
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.merge_record.stored import Stored, to_json
from airflow_merge_provider.core.model import INPUT, NO_COLUMN, OUTPUT, SOURCE_COLUMN, STATE_DATASET, Config

BIN_PACKING = "Bin-Packing Algorithm"
DEFRAGMENT = "Defragment"
Format = Literal["csv", "json", "json-array", "avro", "parquet", "orc", "xml"]
FORMATS: tuple[str, ...] = get_args(Format)
PLACES = ("source", "merged", "failure", "original", "state_path")
FAILED_FILES, MISSING_SOURCE = "failed-files", "missing-source"
_ATTRIBUTE_SOURCES = ("metadata", "path", "sidecar")
# Formats whose schema can only be determined from the records.
_SCHEMALESS_FORMATS = ("csv", "json", "json-array")
_ORIGINAL = "set the folder for merged source files, or set original_action to 'keep' or 'delete'"
_READER = 'must be the name of a format or an object {"format": …, "schema": …, "options": {…}}'


def _build_word_validator(*choices: str) -> BeforeValidator:
    """Return a validator that accepts the words as NiFi spells them, in any case, or their first part."""

    def check(value: Any) -> str:
        text = value.strip().lower().replace("_", "-") if isinstance(value, str) else ""
        for word in choices:
            if text in {word.lower(), word.lower().removesuffix(" algorithm").removesuffix(" attributes")}:
                return word
        raise ValueError(f"must be {' or '.join(repr(word) for word in choices)}")

    return BeforeValidator(check)


def _build_list_validator(*choices: str) -> BeforeValidator:
    """Return a validator that accepts a list of the words, or one of them alone."""

    def check(value: Any) -> tuple[str, ...]:
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(item in choices for item in items):
            raise ValueError(f"must be a list with values from {', '.join(choices)}")
        return tuple(items)

    return BeforeValidator(check)


@dataclass(frozen=True, slots=True)
class FileFormat(Stored):
    """How files are read or written; ``schema`` is DDL text, until a job has parsed it, or its fields."""

    format: str
    schema: Schema | str | None
    options: Mapping[str, str]

    @property
    def fields(self) -> Schema | None:
        """The fields of the schema; None if there is no schema, or only its DDL text."""
        return self.schema if isinstance(self.schema, Schema) else None


def _read_format(value: Any) -> FileFormat:
    """Parse ``{"format": …, "schema": …, "options": {…}}``, or the name of a format alone."""
    if isinstance(value, FileFormat):
        return value
    settings = {"format": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping):
        raise ValueError(_READER)  # noqa: TRY004 - what users read of a wrong value
    keys = ("format", "schema", "options")
    for name in settings:
        if name not in keys:
            raise ValueError(f"unknown key {name!r} ({suggest_name(str(name), keys, 'keys')})")
    kind = str(settings.get("format", "")).strip().lower()
    kind = {"jsonl": "json", "json-lines": "json", "ndjson": "json"}.get(kind, kind)
    if kind not in FORMATS:
        hint = suggest_name(kind, FORMATS, "formats")
        raise ValueError(f"unknown format {settings.get('format')!r} ({hint})")
    options = settings.get("options") or {}
    if not isinstance(options, Mapping):
        raise ValueError("options must be an object")  # noqa: TRY004 - as above
    return FileFormat(kind, _read_schema(settings.get("schema")), read_options(options))


def _read_schema(value: Any) -> Schema | str | None:
    """Parse a schema given as DDL text or as an object with fields."""
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("fields"), list | tuple) and value["fields"]:
        for field in value["fields"]:
            if not isinstance(field, Mapping) or not {"name", "type"} <= field.keys():
                raise ValueError("every field of the schema must have a name and a type")
        return Schema.from_json(value)
    raise ValueError("schema must be a DDL string such as 'id INT, v STRING' or an object with fields")


def _read_texts(value: Any) -> dict[str, str] | None:
    """Validate an object of texts."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and text for pair in value.items() for text in pair
    ):
        raise ValueError("must be an object of non-empty strings")
    return dict(value)


def _arrival_order(value: Any) -> str:
    if value in ("modified", "path") or (
        isinstance(value, str) and value.removeprefix("attribute:") not in {"", value}
    ):
        return str(value)
    raise ValueError("must be 'modified', 'path' or 'attribute:<name>'")


def _read_folder(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a folder: the ID of a folder in the warehouse, or a location with / or ://")
    return value


def _build_validator(check: Callable[[Any], Any], unset: Any = None) -> BeforeValidator:
    """Return a validator that parses with ``check``; None becomes ``unset``."""
    return BeforeValidator(lambda value: unset if value is None else check(value))


def _build_json_schema(*types: str) -> WithJsonSchema:
    """Return the JSON Schema of the values that users may write."""
    return WithJsonSchema({"type": list(types)})


Place = Annotated[str, BeforeValidator(_read_folder)] | None
Count = Annotated[int, _build_validator(positive_integer, 1), _build_json_schema("integer", "string")]
Limit = Annotated[int | None, BeforeValidator(parse_limit), _build_json_schema("integer", "string", "null")]
Size = Annotated[int, _build_validator(data_size, 0), _build_json_schema("integer", "string")]
MostSize = Annotated[int | None, _build_validator(data_size), _build_json_schema("integer", "string", "null")]
Span = Annotated[Period | None, _build_validator(parse_period), _build_json_schema("string", "null")]
_FORMAT_SCHEMA = _build_json_schema("object", "string")
_WRITER_SCHEMA = _build_json_schema("object", "string", "null")
Described = Annotated[FileFormat, BeforeValidator(_read_format), _FORMAT_SCHEMA, NO_COLUMN]
Texts = Annotated[dict[str, str] | None, BeforeValidator(_read_texts), SOURCE_COLUMN]
FailOn = Annotated[tuple[str, ...], _build_list_validator(FAILED_FILES, MISSING_SOURCE), NO_COLUMN]

# BaseModel has a deprecated method of this name, which is not called here; the argument has the same name.
python_warnings.filterwarnings("ignore", message='Field name "validate"', category=UserWarning)


class MergeRecordConfig(Config):
    """A validated MergeRecord: how files are grouped, when a bin is full, and where the files are."""

    unknown_word: ClassVar[str] = "unknown property"
    output_field: ClassVar[str] = "merged"

    source: Annotated[Place, INPUT] = Field(None, description="The folder of incoming files.")
    merged: Annotated[Place, OUTPUT] = Field(None, description="The folder for merged files.")
    failure: Annotated[Place, OUTPUT] = Field(None, description="The folder for the files of failed bins.")
    original: Annotated[Place, OUTPUT] = Field(
        None, description="The folder to which merged source files are moved."
    )
    original_action: Literal["move", "keep", "delete"] = Field(
        "move", description="Whether the run moves, keeps or deletes merged source files."
    )
    state_path: Annotated[Place, STATE_DATASET] = Field(
        None, description="The folder for open bins, plans, manifests and the ledger of this task only."
    )
    reader: Described = Field(
        FileFormat("json", None, {}),
        description="Format, schema and options of incoming files.",
    )
    writer: Annotated[FileFormat | None, _build_validator(_read_format), _WRITER_SCHEMA, NO_COLUMN] = Field(
        None,
        description="Format, schema and options of merged files; by default the format and options of the "
        "reader, and the schema of the sources.",
    )
    merge_strategy: Annotated[str, _build_word_validator(BIN_PACKING, DEFRAGMENT), NO_COLUMN] = Field(
        BIN_PACKING, description="How files are merged: by thresholds, or by their fragment.* attributes."
    )
    correlation_attribute_name: Annotated[str | None, Field(min_length=1), SOURCE_COLUMN] = Field(
        None, description="The attribute whose value is the same for all files of a bin."
    )
    attribute_strategy: Annotated[
        str, _build_word_validator(flowfile.COMMON, flowfile.ALL_UNIQUE), NO_COLUMN
    ] = Field(flowfile.COMMON, description="Which attributes of its sources a merged file inherits.")
    min_records: Count = Field(1, description="The minimum number of records of a full bin.")
    max_records: Limit = Field(
        1000, description="The number of records from which a bin is full; files are never split."
    )
    min_bin_size: Size = Field(0, description="The minimum size of a full bin in bytes.")
    max_bin_size: MostSize = Field(
        None, description="The size in bytes from which a bin is full; no limit by default."
    )
    max_bin_age: Span = Field(
        None, description="The age at which a bin is merged even if it is not full; no limit by default."
    )
    max_bins: Limit = Field(
        10, description="The maximum number of open bins; if a new bin exceeds it, the oldest is merged."
    )
    attributes: Texts = Field(
        None, description="Attributes to compute for each file, as strings with ${attribute} placeholders."
    )
    attribute_sources: Annotated[tuple[str, ...], _build_list_validator(*_ATTRIBUTE_SOURCES), NO_COLUMN] = (
        Field(_ATTRIBUTE_SOURCES, description="Where attributes come from, lowest precedence first.")
    )
    partition_by: Texts = Field(
        None,
        description="Attributes with the fields that they come from: files are first split by these fields.",
    )
    arrival_order: Annotated[str, BeforeValidator(_arrival_order), SOURCE_COLUMN] = Field(
        "modified",
        description="The order in which files are added to bins: modified, path or attribute:<name>.",
    )
    settle_time: Span = Field(
        None, description="The minimum age of a file; younger files wait for the next run."
    )
    bin_age_from: Literal["arrival", "first_seen"] = Field(
        "arrival",
        description="Whether a bin's age starts when its first file arrived or when a run first listed it.",
    )
    complete_full_enough: bool = Field(
        default=True,
        description="Whether a run merges bins that reach their minimums, like NiFi with an empty queue.",
    )
    flush: bool = Field(default=False, description="Whether a run merges every open bin.")
    schema_identity: Literal["canonical", "text"] = Field(
        "canonical", description="Whether schemas are compared by their fields or by their text."
    )
    schema_merge: Literal["none", "union"] = Field(
        "none", description="Whether files with different schemas share bins, with the union of their fields."
    )
    fragment_index_policy: Literal["order", "ignore", "strict"] = Field(
        "order",
        description="Whether fragment.index orders a set, is ignored, or must be present and unique.",
    )
    failure_scope: Literal["bin", "flowfile"] = Field(
        "bin", description="Whether a malformed record fails the whole bin or only its file."
    )
    size_basis: Literal["input", "estimated_output", "uncompressed"] = Field(
        "input",
        description="Whether sizes are those of the input files, estimates of the output, or the "
        "uncompressed sizes of the input files.",
    )
    validate: Literal["on_arrival", "on_merge"] = Field(  # type: ignore[assignment] # BaseModel's old method
        "on_arrival",
        description="Whether malformed records are detected when a file arrives or when its bin is merged.",
    )
    trust_record_count: bool = Field(
        default=False,
        description="Whether record.count of a sidecar replaces counting; such a file is validated on merge.",
    )
    expect: Annotated[dict[str, Any] | None, SOURCE_COLUMN] = Field(
        None, description="Conditions on the records of incoming files, by name."
    )
    fail_on: FailOn = Field(
        (), description="Conditions that fail a run instead of a warning: failed-files, missing-source."
    )

    @property
    def defragment(self) -> bool:
        """Whether bins are sets of fragments."""
        return self.merge_strategy == DEFRAGMENT

    @property
    def knows_schema(self) -> bool:
        """Whether the schema of a file is known without reading its records."""
        return self.reader.schema is not None or self.reader.format not in _SCHEMALESS_FORMATS

    @property
    def output(self) -> FileFormat:
        """The format, schema and options of merged files."""
        return self.writer or replace(self.reader, schema=None)

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        yield from _threshold_problems(fields)
        yield from _place_problems(fields)
        moves = fields.get("original_action", "move") == "move"
        if moves and fields.get("source") is not None and "original" in fields and fields["original"] is None:
            yield Problem("original", "missing", "is required with original_action 'move'", _ORIGINAL)
        if not moves and fields.get("original") is not None:
            action = fields["original_action"]
            yield Problem(
                "original", "unused", f"is not supported with original_action {action!r}", "remove it"
            )
        yield from _partition_problems(fields)
        yield from _expectation_problems(fields.get("expect"))
        reader, writer = fields.get("reader"), fields.get("writer")
        if output := writer or reader:
            yield from _csv_problems(output, "writer" if writer else "reader")
        if reader:
            yield from find_option_problems(reader.format, reader.options, "reader", MERGE_RECORD)
            if reader.schema is None:
                yield from find_lossy_options(reader.format, reader.options, "reader", INFERRING)
            yield from find_missing_options(reader.format, reader.options, "reader")
        if reader and reader.format == "xml" and reader.schema is None:
            hint = 'set one, such as "id INT, v STRING"'
            yield Problem("reader", "schema", "format 'xml' requires a schema", hint)

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as options that can be parsed again."""
        raw = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("max_bin_age", "settle_time"):
            raw[name] = None if raw[name] is None else raw[name].text
        for name in ("max_records", "max_bins"):
            raw[name] = "unlimited" if raw[name] is None else raw[name]
        written: dict[str, Any] = to_json(raw)
        return written

    def list_warnings(self) -> list[str]:
        warnings = []
        has_minimums = self.min_records > 1 or self.min_bin_size
        waiting = [
            (not self.complete_full_enough, "bins below a maximum"),
            (has_minimums and not self.defragment, "bins below the minimums"),
        ]
        waits = [next((bins for applies, bins in waiting if applies), None)]
        waits += ["incomplete sets of fragments"] if self.defragment else []
        warnings += [
            f"max_bin_age is not set: {bins} stay open until more files arrive"
            for bins in waits
            if bins and self.max_bin_age is None and not self.flush
        ]
        if self.defragment and self.correlation_attribute_name:
            warnings.append("correlation_attribute_name has no effect with merge_strategy 'Defragment'")
        if not self.knows_schema:
            if self.validate == "on_merge":
                warnings.append("validate 'on_merge' has no effect unless the reader has a schema")
            if self.trust_record_count:
                warnings.append("trust_record_count has no effect unless the reader has a schema")
        return warnings


def _partition_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for options that do not work with split files, whose records are read on arrival."""
    if not options.get("partition_by"):
        return
    at = "partition_by"
    if options.get("merge_strategy") == DEFRAGMENT:
        hint = "set correlation_attribute_name instead"
        yield Problem(at, "conflict", "cannot be combined with merge_strategy 'Defragment'", hint)
    if options.get("validate") == "on_merge" or options.get("trust_record_count"):
        message = "cannot be combined with validate 'on_merge' or trust_record_count"
        yield Problem(at, "conflict", message, "files are split on arrival: remove these options")


def _csv_problems(output: FileFormat, path: str) -> Iterator[Problem]:
    """Yield the options with which merged files of CSV have other values.

    :param path: the argument that has the options, ``reader`` if the writer has none of its own.
    """
    if output.format != "csv":
        return
    if find_option(output.options, "quoteAll").lower() == "true" and not find_option(
        output.options, "nullValue"
    ):
        message = "the option quoteAll='true' writes NULL as an empty text"
        yield Problem(path, "options", message, "set nullValue too, such as 'NULL', or remove the option")
    # A file that is read without quotes has no value that needs them.
    for name in ("quote", "escape") if path == "writer" else ("escape",):
        if find_option(output.options, name, '"') in ("", "\0"):
            message = f"the option {name}='' writes values with quotes or separators as others"
            yield Problem(path, "options", message, "remove it, or set a writer without it")


def _expectation_problems(raw: Any) -> Iterator[Problem]:
    """Yield problems for expectations; each file is checked when its bin is to be merged."""
    problems = list(find_problems(raw))
    yield from problems
    if problems:
        return
    for item in parse_expectations(raw):
        if not item.is_row_condition:
            message = f"{item.kind} is not supported, because runs check each record alone"
            hint = "use a condition, not_null or accepted_values"
            yield Problem(f"{item.path}.{item.kind}", "unsupported", message, hint)
        if item.scope == "changes":
            message = "'changes' is not supported: merged files have the records of their sources"
            yield Problem(f"{item.path}.on", "unsupported", message, "remove it")
        if item.sources:
            yield Problem(f"{item.path}.source", "contradiction", "has no effect on files", "remove it")


def _threshold_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    minimum, maximum = options.get("min_records"), options.get("max_records")
    if minimum is not None and maximum is not None and maximum < minimum:
        hint = "the default of max_records is 1000"
        yield Problem("max_records", "threshold", f"{maximum} is below min_records {minimum}", hint)
    minimum, maximum = options.get("min_bin_size"), options.get("max_bin_size")
    if minimum is not None and maximum is not None and maximum < minimum:
        yield Problem("max_bin_size", "threshold", f"{maximum} bytes are below min_bin_size {minimum} bytes")


def _place_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for locations that are tables, or nested: a file must not become its own source."""
    paths: dict[str, str] = {}
    for name in PLACES:
        if options.get(name) is None:
            continue
        try:
            path = resolve_dataset(options[name], "/", at=name).path
        except ConfigError as error:
            yield from error.problems
            continue
        if path is None:
            yield Problem(
                name, "location", f"{options[name]!r} is a catalog table", "set the location of a folder"
            )
            continue
        for other_name, other_path in paths.items():
            if _is_inside(path, other_path) or _is_inside(other_path, path):
                yield Problem(
                    name,
                    "location",
                    f"{options[name]!r} and {other_name} {options[other_name]!r} overlap",
                    "use separate folders",
                )
        paths[name] = path


def _is_inside(path: str, folder: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")
