"""XML files without their ends, of which Spark reads the records before, such as a part of an upload.

Source: docs/semantics/merge_record.md, Formats.
"""

from __future__ import annotations

from typing import Any, BinaryIO
from xml.parsers import expat

from airflow_merge_provider.jobs.spark.files.file_problem import WRITE_AGAIN

_CODES = expat.errors.codes
# Spark reports other errors, or reads what they are in, such as one of several roots.
_CUT = {
    _CODES[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
    _CODES[expat.errors.XML_ERROR_PARTIAL_CHAR],
    _CODES[expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION],
}
_NO_ROOT_END = _CODES[expat.errors.XML_ERROR_NO_ELEMENTS]


def find_cut_end(file: BinaryIO) -> str | None:
    """Return the problem of a file that ends inside an element, a tag or a comment; None for another file."""
    parser, roots = expat.ParserCreate(), list[str]()

    def add_root(name: str, _: Any) -> None:
        roots.append(name)
        parser.StartElementHandler = None

    parser.StartElementHandler = add_root
    try:
        parser.ParseFile(file)
    except expat.ExpatError as error:
        if error.code in _CUT or (error.code == _NO_ROOT_END and roots):
            return f"line {error.lineno}: it ends inside an element, a tag or a comment ({WRITE_AGAIN})"
    return None
