"""Read every state of a key over the versions of a table, whichever program wrote the table."""

from __future__ import annotations

from airflow_merge_provider.explain.keys import find_key_columns, read_history_columns
from airflow_merge_provider.explain.model.key import convert_key, parse_key
from airflow_merge_provider.explain.model.timeline import Timeline, build_timeline
from airflow_merge_provider.explain.reading import list_types, open_version, read_states, refuse_unknown_key
from airflow_merge_provider.explain.target import open_target


def trace_key(target: str, key: str, *, warehouse: str | None = None, version: int | None = None) -> Timeline:
    """Return the rows of a key after each commit that changed them.

    :param key: the value of the only key column, or a JSON object with the values of any columns.
    :param version: the version of the target at which the timeline ends; None for the newest.
    :raises ConfigError: if the target or the key is not valid.
    :raises DataError: if the target is not a Delta table, does not have the version, or never had the key.
    """
    dataset, table = open_target(target, warehouse)
    if version is not None:
        table = open_version(dataset, version)
    columns = () if key.lstrip().startswith("{") else find_key_columns(dataset, table)
    texts = parse_key(key, columns, list(list_types(table)))
    values = convert_key(texts, list_types(table))
    states = read_states(dataset, table, [texts])
    if not any(state.rows for state in states.states):
        raise refuse_unknown_key(dataset, states, values)
    return build_timeline(values, states, read_history_columns(table))
