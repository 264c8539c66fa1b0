"""The configuration of MergeRecord: NiFi's properties, and the locations of input and output files.

Source: docs/semantics/merge_record.md, Properties.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, did_you_mean
from airflow_merge_provider.core.merge_record import attributes as attribute_rules
from airflow_merge_provider.core.merge_record.units import (
    Period,
    data_size,
    parse_limit,
    parse_period,
    positive_integer,
)
from airflow_merge_provider.core.model import Config

BIN_PACKING = "Bin-Packing Algorithm"
DEFRAGMENT = "Defragment"
Format = Literal["csv", "json", "json-array", "avro", "parquet", "orc", "xml"]
FORMATS: tuple[str, ...] = get_args(Format)
PLACES = ("source", "merged", "failure", "original", "state_path")
_SOURCES = ("metadata", "path", "sidecar")
# Formats whose schema can only be determined from the records.
_INFERRED = ("csv", "json", "json-array")
_ORIGINAL = "name where merged sources go, or set original_action to 'keep' or 'delete'"
_READER = 'must be a format or {"format": …, "schema": …, "options": {…}}'


def _build_word_validator(*words: str) -> BeforeValidator:
    """Return a validator that accepts the words as NiFi spells them, in any case, or their first part."""

    def check(value: Any) -> str:
        given = value.strip().lower().replace("_", "-") if isinstance(value, str) else ""
        for word in words:
            if given in {word.lower(), word.lower().removesuffix(" algorithm").removesuffix(" attributes")}:
                return word
        raise ValueError(f"must be {' or '.join(repr(word) for word in words)}")

    return BeforeValidator(check)


def _read_format(value: Any) -> dict[str, Any]:
    """Parse ``{"format": …, "schema": …, "options": {…}}``, or the name of a format alone."""
    given = {"format": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(_READER)  # noqa: TRY004 - what users read of a wrong value
    known = ("format", "schema", "options")
    for name in given:
        if name not in known:
            raise ValueError(
                f"unknown key {name!r} ({did_you_mean(str(name), known) or 'known: ' + ', '.join(known)})"
            )
    kind = str(given.get("format", "")).strip().lower()
    kind = {"jsonl": "json", "json-lines": "json", "ndjson": "json"}.get(kind, kind)
    if kind not in FORMATS:
        hint = did_you_mean(kind, FORMATS) or f"known: {', '.join(FORMATS)}"
        raise ValueError(f"unknown format {given.get('format')!r} ({hint})")
    options = given.get("options") or {}
    if not isinstance(options, Mapping):
        raise ValueError("options must be an object")  # noqa: TRY004 - as above
    return {
        "format": kind,
        "schema": _read_schema(given.get("schema")),
        "options": {
            str(name): str(option).lower() if isinstance(option, bool) else str(option)
            for name, option in options.items()
        },
    }


def _read_schema(value: Any) -> Any:
    """Parse a schema given as DDL text or as an object with fields."""
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("fields"), list | tuple) and value["fields"]:
        for field in value["fields"]:
            if not isinstance(field, Mapping) or not {"name", "type"} <= field.keys():
                raise ValueError("every field of a schema needs a name and a type")
        return dict(value)
    raise ValueError("schema must be a text such as 'id INT, v STRING' or an object with fields")


def _attribute_sources(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(each in _SOURCES for each in value):
        raise ValueError(f"must be a list of {', '.join(_SOURCES)}")
    return tuple(value)


def _read_texts(value: Any) -> dict[str, str] | None:
    """Validate an object of texts."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) and each for pair in value.items() for each in pair
    ):
        raise ValueError("must be an object of non-empty texts")
    return dict(value)


def _arrival_order(value: Any) -> str:
    if value in ("modified", "path") or (
        isinstance(value, str) and value.removeprefix("attribute:") not in {"", value}
    ):
        return str(value)
    raise ValueError("must be 'modified', 'path' or 'attribute:<name>'")


def _read_folder(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must name a place: a bare id, or a location with / or ://")
    return value.strip().rstrip("/") or "/"


def _build_validator(check: Callable[[Any], Any], unset: Any = None) -> BeforeValidator:
    """Return a validator that parses with ``check``; None becomes ``unset``."""
    return BeforeValidator(lambda value: unset if value is None else check(value))


def _build_json_schema(*types: str) -> WithJsonSchema:
    """Return the JSON Schema of the values that users may write."""
    return WithJsonSchema({"type": list(types)})


Place = Annotated[str, BeforeValidator(_read_folder)]
Count = Annotated[int, _build_validator(positive_integer, 1), _build_json_schema("integer", "string")]
Limit = Annotated[int | None, BeforeValidator(parse_limit), _build_json_schema("integer", "string", "null")]
Size = Annotated[int, _build_validator(data_size, 0), _build_json_schema("integer", "string")]
MostSize = Annotated[int | None, _build_validator(data_size), _build_json_schema("integer", "string", "null")]
Span = Annotated[Period | None, _build_validator(parse_period), _build_json_schema("string", "null")]
Described = Annotated[dict[str, Any], BeforeValidator(_read_format), _build_json_schema("object", "string")]

# BaseModel has a deprecated method of this name, which is not called here; the argument has the same name.
python_warnings.filterwarnings("ignore", message='Field name "validate"', category=UserWarning)


class MergeRecordConfig(Config):
    """A validated MergeRecord: how files are grouped, when a bin is full, and where the files are."""

    unknown_word: ClassVar[str] = "unknown property"

    source: Place | None = Field(None, description="Where files wait to be merged.")
    merged: Place | None = Field(None, description="Where merged files go.")
    failure: Place | None = Field(None, description="Where the files of failed bins go.")
    original: Place | None = Field(None, description="Where merged sources are moved to.")
    original_action: Literal["move", "keep", "delete"] = Field(
        "move", description="What happens to merged sources."
    )
    state_path: Place | None = Field(
        None, description="A folder for open bins, plans, manifests and the ledger."
    )
    reader: Described = Field(
        {"format": "json", "schema": None, "options": {}},
        description="Format, schema and options of the files that wait.",
    )
    writer: Annotated[dict[str, Any] | None, _build_validator(_read_format)] = Field(
        None, description="Format, schema and options of merged files; those of the reader when not given."
    )
    merge_strategy: Annotated[str, _build_word_validator(BIN_PACKING, DEFRAGMENT)] = Field(
        BIN_PACKING, description="By thresholds, or by the fragment.* attributes."
    )
    correlation_attribute_name: Annotated[str | None, Field(min_length=1)] = Field(
        None, description="The attribute that files of one bin have in common."
    )
    attribute_strategy: Annotated[
        str, _build_word_validator(attribute_rules.COMMON, attribute_rules.ALL_UNIQUE)
    ] = Field(attribute_rules.COMMON, description="Which attributes a merged file inherits.")
    min_records: Count = Field(1, description="Fewest records of a bin that is full.")
    max_records: Limit = Field(
        1000, description="From so many records on a bin is full; a file is never cut."
    )
    min_bin_size: Size = Field(0, description="Fewest bytes of a bin that is full.")
    max_bin_size: MostSize = Field(
        None, description="From so many bytes on a bin is full; no limit when not given."
    )
    max_bin_age: Span = Field(
        None, description="A bin that is older ends, full or not; never when not given."
    )
    max_bins: Limit = Field(10, description="Most open bins; one more ends the oldest.")
    attributes: Annotated[dict[str, str] | None, BeforeValidator(_read_texts)] = Field(
        None, description="Attributes computed per file, as texts with ${attribute} in them."
    )
    attribute_sources: Annotated[tuple[str, ...], BeforeValidator(_attribute_sources)] = Field(
        _SOURCES, description="Where attributes come from, the weakest first."
    )
    partition_by: Annotated[dict[str, str] | None, BeforeValidator(_read_texts)] = Field(
        None, description="Attributes by the fields they come from: each file is split by these fields first."
    )
    arrival_order: Annotated[str, BeforeValidator(_arrival_order)] = Field(
        "modified", description="In which order files are binned: modified, path or attribute:<name>."
    )
    settle_time: Span = Field(None, description="Files younger than this wait for the next run.")
    bin_age_from: Literal["arrival", "first_seen"] = Field(
        "arrival", description="Whether a bin is as old as its first file or as the run that saw it first."
    )
    complete_full_enough: bool = Field(
        default=True,
        description="Whether a run ends the bins that have their minimums, as an empty queue does.",
    )
    flush: bool = Field(default=False, description="Whether a run ends every open bin.")
    schema_identity: Literal["canonical", "text"] = Field(
        "canonical", description="Whether schemas are compared by their fields or by their text."
    )
    schema_merge: Literal["none", "union"] = Field(
        "none", description="Whether files of different schemas share bins, with the union of their fields."
    )
    fragment_index_policy: Literal["order", "ignore", "strict"] = Field(
        "order",
        description="Whether fragment.index orders a set, is not looked at, or must be there once each.",
    )
    failure_scope: Literal["bin", "flowfile"] = Field(
        "bin", description="Whether a malformed record fails the whole bin or its file alone."
    )
    size_basis: Literal["input", "estimated_output", "uncompressed"] = Field(
        "input",
        description="Whether bytes are those of the files, those that the output is expected to have, or "
        "those of the files unpacked.",
    )
    validate: Literal["on_arrival", "on_merge"] = Field(  # type: ignore[assignment] # BaseModel's old method
        "on_arrival",
        description="Whether malformed records are looked for when a file arrives or when its bin is merged.",
    )
    trust_record_count: bool = Field(
        default=False,
        description="Whether the record.count of a sidecar is believed; such a file is validated on merge.",
    )

    @property
    def defragment(self) -> bool:
        """Whether bins are sets of fragments."""
        return self.merge_strategy == DEFRAGMENT

    @property
    def knows_schema(self) -> bool:
        """Whether the schema of a file is known without reading its records."""
        return self.reader["schema"] is not None or self.reader["format"] not in _INFERRED

    @property
    def output(self) -> dict[str, Any]:
        """The format, schema and options of merged files."""
        return self.writer or {**self.reader, "schema": None}

    @classmethod
    def check_rules(cls, known: Mapping[str, Any]) -> Iterator[Problem]:
        yield from _threshold_problems(known)
        yield from _place_problems(known)
        moves = known.get("original_action", "move") == "move"
        if moves and known.get("source") is not None and "original" in known and known["original"] is None:
            yield Problem("original", "missing", "is required with original_action 'move'", _ORIGINAL)
        if not moves and known.get("original") is not None:
            action = known["original_action"]
            yield Problem(
                "original", "unused", f"is not used with original_action {action!r}", "leave it out"
            )
        yield from _partition_problems(known)
        reader = known.get("reader")
        if reader and reader["format"] == "xml":
            if reader["schema"] is None:
                yield Problem("reader", "schema", "format xml needs a schema", 'such as "id INT, v STRING"')
            if "rowTag" not in reader["options"]:
                yield Problem(
                    "reader", "options", "format xml needs the option rowTag", "name the element of a record"
                )


def list_warnings(config: MergeRecordConfig) -> list[str]:
    """Return warnings about settings that are valid but probably not intended."""
    found = []
    if config.max_bin_age is None and not config.flush and not config.complete_full_enough:
        found.append("no max_bin_age: bins below a maximum wait for ever")
    elif (
        config.max_bin_age is None
        and (config.min_records > 1 or config.min_bin_size)
        and not config.defragment
    ):
        found.append("no max_bin_age: bins below the minimums wait for ever")
    if config.defragment and config.max_bin_age is None:
        found.append("no max_bin_age: incomplete sets of fragments wait for ever")
    if config.defragment and config.correlation_attribute_name:
        found.append("correlation_attribute_name has no effect with Defragment")
    if not config.knows_schema:
        if config.validate == "on_merge":
            found.append("validate 'on_merge' has no effect without a schema of the reader")
        if config.trust_record_count:
            found.append("trust_record_count has no effect without a schema of the reader")
    return found


def _partition_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for options that do not work with split files, whose records are read on arrival."""
    if not known.get("partition_by"):
        return
    at = "partition_by"
    if known.get("merge_strategy") == DEFRAGMENT:
        hint = "merge by a correlation attribute"
        yield Problem(at, "conflict", "cannot be combined with Defragment", hint)
    if known.get("validate") == "on_merge" or known.get("trust_record_count"):
        what = "cannot be combined with validate 'on_merge' or trust_record_count"
        yield Problem(at, "conflict", what, "files are split when they arrive: leave these out")


def _threshold_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    least, most = known.get("min_records"), known.get("max_records")
    if least is not None and most is not None and most < least:
        hint = "max_records is 1000 when not given"
        yield Problem("max_records", "threshold", f"{most} is below min_records {least}", hint)
    least, most = known.get("min_bin_size"), known.get("max_bin_size")
    if least is not None and most is not None and most < least:
        yield Problem("max_bin_size", "threshold", f"{most} bytes are below min_bin_size {least} bytes")


def _place_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for locations that are tables, or nested: a file must not become its own source."""
    places: dict[str, str] = {}
    for name in PLACES:
        if known.get(name) is None:
            continue
        try:
            path = resolve_dataset(known[name], "/", at=name).path
        except ConfigError as error:
            yield from error.problems
            continue
        if path is None:
            yield Problem(
                name, "place", f"{known[name]!r} is a catalog table", "files need a folder: write a location"
            )
            continue
        for other, taken in places.items():
            if _is_inside(path, taken) or _is_inside(taken, path):
                yield Problem(
                    name,
                    "place",
                    f"{known[name]!r} and {other} {known[other]!r} overlap",
                    "give each a folder of its own",
                )
        places[name] = path


def _is_inside(path: str, other: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")
