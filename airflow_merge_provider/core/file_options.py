"""The options of Spark's readers of files: those that runs pass on, and those that they refuse.

A refused option leaves out or changes values, and no error, log or report says so.

Source: docs/values.md, Options of readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from airflow_merge_provider.core.errors import Problem, suggest_name

DATASET, MERGE_RECORD, INFERRING = "dataset", "merge record", "merge record without a schema"
_FORMATS = ("csv", "json", "json-array", "xml", "text", "parquet", "orc", "avro")
_JSON_FORMATS = ("json", "json-array")
_TEXT_FORMATS = ("csv", *_JSON_FORMATS, "xml")
_BOTH = (DATASET, MERGE_RECORD)
_QUOTE_HANDLING = ("STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER", "STOP_AT_DELIMITER", "RAISE_ERROR")
_REMOVE_HINT = "remove the option"
_OWN_FILES = "keep other files out of the source folder; settle_time leaves out young ones"


class RefusedOption(NamedTuple):
    """An option of a reader that is refused, except with some values.

    ``accepted`` are the values that lose nothing, in whatever case, and ``readers`` are those that refuse the
    others.
    """

    name: str
    formats: tuple[str, ...]
    accepted: tuple[str, ...]
    effect: str
    remedy: str = _REMOVE_HINT
    readers: tuple[str, ...] = _BOTH


REFUSED_OPTIONS: tuple[RefusedOption, ...] = (
    RefusedOption(
        "mode", _TEXT_FORMATS, ("FAILFAST", "PERMISSIVE"), "leaves out records that cannot be read",
        "correct the records, or set PERMISSIVE to read what can be read of them", (DATASET,),
    ),
    RefusedOption(
        "mode", _TEXT_FORMATS, ("FAILFAST",), "reads a part of a record, or leaves it out",
        readers=(MERGE_RECORD,),
    ),
    RefusedOption(
        "samplingRatio", _TEXT_FORMATS, ("1", "1.0"), "leaves out fields that only other records have",
        "remove the option",
    ),
    RefusedOption("ignoreCorruptFiles", _FORMATS, ("false",), "leaves out files that cannot be read",
                  "remove the option, and the files that cannot be read"),
    RefusedOption("ignoreMissingFiles", _FORMATS, ("false",), "leaves out files that another program removes",
                  "remove the option, and run again after such an error"),
    RefusedOption("dropFieldIfAllNull", _JSON_FORMATS, ("false",), "leaves out fields that have only NULLs"),
    RefusedOption("excludeAttribute", ("xml",), ("false",), "leaves out the attributes of elements"),
    RefusedOption("encoding", ("text",), ("UTF-8", "UTF8"),
                  "has no effect on texts, which Spark reads as UTF-8", "write the files in UTF-8",
                  (DATASET,)),
    RefusedOption("unescapedQuoteHandling", ("csv",), _QUOTE_HANDLING,
                  "leaves out values with quotes inside", "remove the option, or set RAISE_ERROR"),
    RefusedOption("enableDateTimeParsingFallback", _TEXT_FORMATS, ("false",),
                  "reads and completes times that are not in the format that is set"),
    RefusedOption("singleVariantColumn", _TEXT_FORMATS, (),
                  "makes a VARIANT of each record, which rounds numbers with many digits"),
    RefusedOption("mergeSchema", ("parquet", "orc"), ("true",),
                  "leaves out columns that one of the files lacks"),
    RefusedOption("ignoreExtension", ("avro",), ("true",),
                  "leaves out files whose names do not end in .avro"),
    RefusedOption("positionalFieldMatching", ("avro",), ("false",),
                  "takes fields by their position, whatever their names are"),
    RefusedOption("recursiveFieldMaxDepth", ("avro",), ("-1",), "leaves out what is nested deeper",
                  "remove the option, and write records that do not contain themselves"),
    RefusedOption("pathGlobFilter", _FORMATS, (), "leaves out files that the run merges", _OWN_FILES,
                  (MERGE_RECORD,)),
    RefusedOption("modifiedBefore", _FORMATS, (), "leaves out files that the run merges", _OWN_FILES,
                  (MERGE_RECORD,)),
    RefusedOption("modifiedAfter", _FORMATS, (), "leaves out files that the run merges", _OWN_FILES,
                  (MERGE_RECORD,)),
    RefusedOption("recursiveFileLookup", _FORMATS, ("true",), "leaves out files that the run merges",
                  _OWN_FILES, (MERGE_RECORD,)),
    RefusedOption("columnNameOfCorruptRecord", _TEXT_FORMATS, (), "makes NULL of the field with this name",
                  readers=(MERGE_RECORD,)),
    RefusedOption("avroSchema", ("avro",), (), "leaves out fields of the files",
                  "set the schema of the reader", (MERGE_RECORD,)),
    RefusedOption("avroSchemaUrl", ("avro",), (), "leaves out fields of the files",
                  "set the schema of the reader", (MERGE_RECORD,)),
    RefusedOption("multiLine", ("json",), ("false",), "has no effect on the types that are found",
                  "set the format json-array, or a schema of the reader", (INFERRING,)),
    RefusedOption("lineSep", _JSON_FORMATS, (), "has no effect on the types that are found",
                  "set a schema of the reader", (INFERRING,)),
    *(
        RefusedOption(name, _JSON_FORMATS, ("false",), "has no effect on the types that are found",
                      "set a schema of the reader", (INFERRING,))
        for name in ("primitivesAsString", "prefersDecimal", "allowBackslashEscapingAnyCharacter",
                     "allowComments", "allowNonNumericNumbers", "allowNumericLeadingZeros",
                     "allowSingleQuotes", "allowUnquotedControlChars", "allowUnquotedFieldNames")
    ),
)  # fmt: skip
# The other options of Spark 4.1 and 4.2, which are passed on: they say how values are written, or choose
# types, files or fields by name. A reader may have those of another format, which Spark ignores.
PASSED_OPTIONS: dict[str, tuple[str, ...]] = {
    "all": ("basePath", "codec", "compression", "modifiedAfter", "modifiedBefore", "pathGlobFilter",
            "recursiveFileLookup"),
    "csv": ("charset", "charToEscapeQuoteEscaping", "columnNameOfCorruptRecord", "columnPruning", "comment",
            "dateFormat", "delimiter", "emptyValue", "encoding", "enforceSchema", "escape", "escapeQuotes",
            "header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "inferSchema",
            "inputBufferSize", "lineSep", "locale", "maxCharsPerColumn", "maxColumns",
            "maxMalformedLogPerPartition", "multiLine", "nanValue", "negativeInf", "nullValue",
            "positiveInf", "preferDate", "quote", "quoteAll", "sep", "timeFormat", "timestampFormat",
            "timestampNTZFormat", "timeZone"),
    "json": ("allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers",
             "allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars",
             "allowUnquotedFieldNames", "ignoreNullFields", "inferTimestamp", "maxNestingDepth", "maxNumLen",
             "maxStringLen", "prefersDecimal", "pretty", "primitivesAsString",
             "useUnsafeRow", "writeNonAsciiCharacterAsCodePoint"),
    "xml": ("arrayElementName", "attributePrefix", "declaration", "ignoreNamespace",
            "ignoreSurroundingSpaces", "indent", "rootTag", "rowTag", "rowValidationXSDPath",
            "useLegacyXMLParser", "validateName", "valueTag", "wildcardColName"),
    "text": ("wholetext",),
    "parquet": ("datetimeRebaseMode", "int96RebaseMode"),
    "avro": ("avroSchema", "avroSchemaUrl", "enableStableIdentifiersForUnionType", "recordName",
             "recordNamespace", "stableIdentifierPrefixForUnionType"),
}  # fmt: skip
_SPARK_NAMES = {
    name.lower(): name
    for name in (
        *(name for names in PASSED_OPTIONS.values() for name in names),
        *(option.name for option in REFUSED_OPTIONS),
    )
}
# Options with two names in Spark.
_SYNONYMS = {"delimiter": "sep", "charset": "encoding"}


def find_option(options: Mapping[str, str], name: str, default: str = "") -> str:
    """Return an option by its name in any case, or by its second name in Spark.

    >>> find_option({"Delimiter": ";"}, "sep")
    ';'
    """
    return next((value for key, value in options.items() if normalize_name(key) == name.lower()), default)


def read_options(options: Mapping[Any, Any]) -> dict[str, str]:
    """Return options as texts, like PySpark's readers: one with None is left out.

    >>> read_options({"header": True, "maxColumns": 3, "nullValue": None})
    {'header': 'true', 'maxColumns': '3'}
    """
    return {
        str(name): str(option).lower() if isinstance(option, bool) else str(option)
        for name, option in options.items()
        if option is not None
    }


def normalize_name(name: str) -> str:
    """Return the one spelling of the name of an option.

    >>> normalize_name("Charset"), normalize_name("rowTag")
    ('encoding', 'rowtag')
    """
    return _SYNONYMS.get(name.lower(), name.lower())


def find_missing_options(kind: str, options: Mapping[str, str], path: str) -> Iterator[Problem]:
    """Yield the options that the files of a format require; ``path`` is the argument that errors name."""
    if kind == "xml" and not find_option(options, "rowTag"):
        hint = "set it to the name of the element that contains a record"
        yield Problem(path, "options", "format 'xml' requires the option rowTag", hint)


def find_option_problems(
    kind: str, options: Mapping[str, str], path: str, reader: str = DATASET
) -> Iterator[Problem]:
    """Yield what a reader of files would lose in silence because of its options.

    Names with a dot are settings of Hadoop and of its formats, which are not checked.

    :param kind: the format.
    :param path: the argument that errors name.
    :param reader: who reads, ``DATASET``, ``MERGE_RECORD`` or ``INFERRING``.

    >>> [str(problem) for problem in find_option_problems("csv", {"headr": "true"}, "source")]
    ["source: unknown option 'headr', which Spark would ignore (did you mean 'header'?)"]
    """
    first_names: dict[str, str] = {}
    for name in options:
        if "." in name:
            continue
        if name.lower() not in _SPARK_NAMES:
            hint = suggest_name(name, sorted(_SPARK_NAMES.values()), "options")
            yield Problem(path, "options", f"unknown option {name!r}, which Spark would ignore", hint)
        first_name = first_names.setdefault(normalize_name(name), name)
        if first_name != name:
            message = f"{first_name!r} and {name!r} are one option, of which Spark would use one"
            yield Problem(path, "options", message, "remove one of them")
    yield from find_lossy_options(kind, options, path, reader)


def find_lossy_options(
    kind: str, options: Mapping[str, str], path: str, reader: str = DATASET
) -> Iterator[Problem]:
    """Yield the options of a reader that leave out or change values, as ``find_option_problems`` does.

    >>> [str(problem) for problem in find_lossy_options("json", {"samplingratio": "0.5"}, "source")]
    ["source: the option samplingRatio='0.5' leaves out fields that only other records have \
(remove the option)"]
    """
    for option in REFUSED_OPTIONS:
        if kind not in option.formats or reader not in option.readers:
            continue
        value = find_option(options, option.name, option.name)
        if value != option.name and value.upper() not in map(str.upper, option.accepted):
            yield Problem(
                path, "options", f"the option {option.name}={value!r} {option.effect}", option.remedy
            )
