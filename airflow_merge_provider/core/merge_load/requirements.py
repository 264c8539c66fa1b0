"""What the strategies of loads require of the rows that they load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.merge_load.config import DeleteInsertConfig, UpsertConfig
from airflow_merge_provider.core.merge_load.load import LoadConfig, collect_columns
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config

# The prefix of columns that a load adds while it runs, and the column with a hash of a row's content.
PREFIX = "__merge_"
CONTENT = f"{PREFIX}content"


@dataclass(frozen=True, slots=True)
class StagingRequirements:
    """The requirements of a strategy for its rows.

    ``required`` columns must be in the source; ``keys`` hold no NULL; ``unique`` are the columns by which
    rows are deduplicated, empty if all rows stay. Of several rows with equal values there, the highest by
    ``sequence`` counts, or with ``ranked`` the best by the configured sort; without either, different rows
    are an error. ``tracked`` selects the columns of a second hash. A ``lazy`` strategy compares rows before
    they are counted or checked, because it needs few of them.
    """

    required: Sequence[str] = ()
    keys: Sequence[str] = ()
    unique: Sequence[str] = ()
    ranked: bool = False
    sequence: Sequence[str] = ()
    tracked: Callable[[Sequence[str]], Sequence[str]] | None = None
    lazy: bool = False

    def list_named(self, config: LoadConfig, stored: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that the source must have, given the columns of the target."""
        sort = (config.sort[0],) if config.sort and self.ranked else ()
        excepted = (config.track_except or ()) if isinstance(config, Scd2Config) else ()
        # A source may lack these columns if the target has them; if neither has one, the name is misspelt.
        optional = (name for name in collect_columns(config.hard_delete, excepted) if name not in stored)
        return (*self.required, *self.sequence, *sort, *optional)


def build_requirements(config: LoadConfig) -> StagingRequirements:
    """Return the requirements of a load's strategy."""
    if isinstance(config, DeleteInsertConfig):
        return _build_for_replacement(config)
    if isinstance(config, UpsertConfig):
        return _build_for_upsert(config)
    if not isinstance(config, Scd2Config):
        raise TypeError(f"{type(config).__name__} is not a load")
    return _build_for_versions(config) if config.natural_key is None else _build_for_history(config)


def list_tracked(names: Sequence[str], config: Scd2Config) -> tuple[str, ...]:
    """Return the columns whose change starts a new version of a natural key."""
    configured_columns = collect_columns(config.row_version_column_name or config.track)
    if configured_columns:
        return configured_columns
    untracked_options = (config.natural_key, config.time_column, config.hard_delete, config.overwrite)
    untracked_columns = collect_columns(*untracked_options, config.track_except)
    return tuple(name for name in names if name not in untracked_columns)


def _build_for_replacement(config: DeleteInsertConfig) -> StagingRequirements:
    """Keys have no NULL, and the best row of each primary key is loaded."""
    groups = None if config.destination_scope is not None else config.merge_key
    keys = collect_columns(config.primary_key, groups)
    unique = () if config.deduplicated or config.primary_key is None else config.primary_key
    return StagingRequirements(required=keys, keys=keys, unique=unique, ranked=bool(unique))


def _build_for_upsert(config: UpsertConfig) -> StagingRequirements:
    """Each key is loaded once, and is never NULL."""
    keys = config.primary_key or ()
    groups = config.merge_key if config.variant == "cdc" and config.destination_scope is None else None
    version = config.row_version_column_name if config.skip_unchanged_rows else None
    return StagingRequirements(
        required=collect_columns(keys, groups, version),
        keys=collect_columns(keys, groups),
        unique=keys,
        ranked=config.dedup_sort is not None,
        sequence=config.sequence_by or (),
    )


def _build_for_versions(config: Scd2Config) -> StagingRequirements:
    """Each version is loaded once."""
    groups = None if config.destination_scope is not None else config.merge_key
    version = config.row_version_column_name
    keys = collect_columns(groups, version)
    return StagingRequirements(
        required=keys,
        keys=keys,
        unique=collect_columns(version or CONTENT),
        tracked=lambda names: names if version is None else (version,),
        lazy=True,
    )


def _build_for_history(config: Scd2Config) -> StagingRequirements:
    """Each key has one state per time."""
    keys = collect_columns(config.natural_key, config.time_column)
    groups = config.scope if isinstance(config.scope, tuple) else None
    named = collect_columns(config.track, config.overwrite, config.row_version_column_name)
    return StagingRequirements(
        required=collect_columns(keys, groups, named),
        keys=collect_columns(keys, groups),
        unique=keys,
        ranked=config.dedup_sort is not None,
        sequence=config.sequence_by or (),
        tracked=lambda names: list_tracked(names, config),
        lazy=config.mode == "snapshot",
    )
