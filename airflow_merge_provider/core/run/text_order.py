"""The warning for a column of text whose values order records, which all capabilities use."""

from __future__ import annotations


def describe_text_order(path: str, column: str) -> str:
    """Return the warning for a text column that orders records by an option.

    >>> print(describe_text_order("options.sequence.field", "version"))
    options.sequence.field: column 'version' is text, so '9' is newer than '10' (cast it upstream, e.g. \
CAST(version AS BIGINT), or CAST(version AS TIMESTAMP); texts of one length such as ISO dates are in order)
    """
    return (
        f"{path}: column {column!r} is text, so '9' is newer than '10' (cast it upstream, e.g. "
        f"CAST({column} AS BIGINT), or CAST({column} AS TIMESTAMP); texts of one length such as ISO dates "
        "are in order)"
    )
