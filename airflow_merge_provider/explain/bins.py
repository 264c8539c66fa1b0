"""Read the open bins of a merge record and the bins that ended last, from its state and its ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.value_text import format_time
from airflow_merge_provider.explain.merge_record import StateFolder, require_state_folders
from airflow_merge_provider.explain.model.files import FileEvent

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class BinReport:
    """The bins of one state_path: those that are open, oldest first, and the last that ended, newest first.

    ``returned`` is the number of files whose merge was withdrawn, and which wait for the next run.
    """

    location: str
    open_bins: tuple[Bin, ...]
    ended: tuple[FileEvent, ...]
    returned: int

    def as_object(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "state_path": self.location,
            "open_bins": [
                {
                    "bin": bin_.id,
                    "group": bin_.group[-1],
                    "since": format_time(read_instant(bin_.created_at)),
                    "files": len(bin_.sources),
                    "expected_files": bin_.expected,
                    "records": bin_.records,
                    "bytes": bin_.bytes,
                }
                for bin_ in self.open_bins
            ],
            "returned_files": self.returned,
            "ended": [{"state": event.generation, **event.line} for event in self.ended],
        }


def list_bins(target: str, *, warehouse: str | None = None, limit: int = 20) -> list[BinReport]:
    """Return the bins of each state_path of a merge record.

    :param target: the state_path of the task, or its merged folder if both have the same parent.
    :param limit: the number of ended bins.
    :raises ConfigError: if the target has no location.
    :raises DataError: if the target is not a folder of a merge record, or one of its files is damaged.
    """
    folders = require_state_folders(resolve_dataset(target, warehouse, at="target"))
    return [_read_report(folder, limit) for folder in folders]


def read_instant(microseconds: int) -> datetime:
    """Return the time of a number of microseconds since 1970, in whole seconds of UTC."""
    return datetime.fromtimestamp(microseconds // _MICROSECONDS, tz=UTC)


def _read_report(folder: StateFolder, limit: int) -> BinReport:
    raw = folder.read_state()
    state = State.from_json(raw) if raw else State()
    ended = tuple(islice(folder.read_newest_events(), limit))
    return BinReport(folder.location, state.bins, ended, len(state.returned))
