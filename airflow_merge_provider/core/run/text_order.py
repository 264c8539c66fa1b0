"""The warning for a column of text whose values order records, which all capabilities use."""

from __future__ import annotations

from airflow_merge_provider.core.schema.type_text import show_identifier


def describe_text_order(path: str, *names: str) -> str:
    """Return the warning for a text column, or a field inside of it, that orders records by an option.

    >>> print(describe_text_order("options.sequence.field", "version"))
    options.sequence.field: column 'version' is text, so '9' is newer than '10' (cast it upstream, e.g. \
CAST(version AS BIGINT), or CAST(version AS TIMESTAMP); texts of one length such as ISO dates are in order)
    """
    cast = ".".join(map(show_identifier, names))
    return (
        f"{path}: column {'.'.join(names)!r} is text, so '9' is newer than '10' (cast it upstream, e.g. "
        f"CAST({cast} AS BIGINT), or CAST({cast} AS TIMESTAMP); texts of one length such as ISO dates "
        "are in order)"
    )
