"""Tests that a wait ends exactly if a run would have something to do."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.merge_record.bins import Bin
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.landing import FileEntry
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.triggers.landing import LandingTrigger


@pytest.fixture
def landing(tmp_path: Path) -> Any:
    """Return a function that creates a trigger for an open bin with one old file."""

    def make_trigger(*, bin_age: Any = 0.0, **settings: Any) -> Any:
        source = tmp_path / "in"
        source.mkdir(exist_ok=True)
        file = source / "known.json"
        file.write_text("{}")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        entry = FileEntry.from_stat("known.json", {"size": 2, "mtime": 1_700_000_000.0})
        waiting = Bin(1, ("s", ""), int((time.time() - bin_age) * 1_000_000))
        waiting.add_flowfile(FlowFile(str(file), "u", 0, 1, 2, "s", entry.version))
        state = State(generation=4, next_seq=2, bins=(waiting,))
        (tmp_path / "state").mkdir(exist_ok=True)
        content = json.dumps({"state": state.as_json(), "report_data": {}})
        (tmp_path / "state" / "state-000000000004.json").write_text(content)
        defaults = {"source": str(source), "state_path": str(tmp_path / "state")}
        defaults |= {"merged": "/m", "failure": "/f", "original": "/o", "reader": "json", "min_records": 5}
        return LandingTrigger({**defaults, **settings}, poll_interval=0.05)

    return make_trigger


def test_nothing_new_and_nothing_old_is_no_reason(landing: Any, tmp_path: Path) -> None:
    """Known files, hidden files, sidecars and a bin below its maximum age do not end the wait."""
    trigger = landing(max_bin_age="1 hour", bin_age=60)
    (tmp_path / "in" / "_half.json").write_text("{}")
    (tmp_path / "in" / "known.json.attributes.json").write_text("{}")

    assert trigger.find_reason() is None


def test_a_new_file_is_a_reason_once_it_has_settled(landing: Any, tmp_path: Path) -> None:
    """A new file ends the wait after settle_time."""
    trigger = landing(settle_time="1 hour")
    (tmp_path / "in" / "new.json").write_text("{}")
    assert trigger.find_reason() is None

    os.utime(tmp_path / "in" / "new.json", (1_700_000_000, 1_700_000_000))
    assert trigger.find_reason() == "1 new files"


def test_an_expired_bin_is_a_reason(landing: Any) -> None:
    """An expired bin ends the wait, also without new files."""
    assert landing(max_bin_age="1 hour", bin_age=3601).find_reason() == "1 bins are due (AGE)"


def test_lower_thresholds_are_a_reason(landing: Any) -> None:
    """Lower thresholds end the wait, because they apply to open bins at once."""
    assert landing(min_records=1).find_reason() == "1 bins are due (FULL_ENOUGH)"
    writer = {"format": "json", "schema": "id INT"}
    assert landing(min_records=1, writer=writer).find_reason() == "1 bins are due (FULL_ENOUGH)"


def test_a_file_of_a_bin_that_changed_or_vanished_is_a_reason(landing: Any, tmp_path: Path) -> None:
    """A changed or deleted file of a bin ends the wait, because it has to be removed from the bin."""
    trigger = landing()
    (tmp_path / "in" / "known.json").unlink()
    assert trigger.find_reason() == "1 files of open bins have changed or no longer exist"


def test_a_plan_that_was_left_is_a_reason(landing: Any, tmp_path: Path) -> None:
    """An unfinished plan ends the wait, with or without new files."""
    trigger = landing()
    (tmp_path / "state" / "plan-5.json").write_text("{}")
    assert trigger.find_reason() == "a previous run left an unfinished plan"


def test_a_try_after_the_work_was_done_has_only_to_tell_it(landing: Any, tmp_path: Path) -> None:
    """A retry after the work was done only has to report it.

    Waiting for the next file would delay the report.
    """
    trigger = landing()
    state = json.loads((tmp_path / "state" / "state-000000000004.json").read_text())
    state["report_data"] = {"token": {"run_id": "r"}}
    (tmp_path / "state" / "state-000000000004.json").write_text(json.dumps(state))
    assert trigger.find_reason() is None

    trigger.token = {"run_id": "r"}
    assert trigger.find_reason() == "an earlier try has already completed the run"


def test_what_cannot_be_read_is_told_by_the_run(landing: Any, tmp_path: Path) -> None:
    """An error ends the wait, so that the run reports it."""
    trigger = landing()
    (tmp_path / "state" / "state-000000000004.json").write_text("{")
    assert trigger.find_reason().startswith("the landing folder cannot be checked")


def test_folders_that_are_not_there_yet_hold_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A DAG may be enabled before the first file arrives: a missing source is a warning, or fails the run."""
    config = {
        "source": str(tmp_path / "in"),
        "state_path": str(tmp_path / "state"),
        "original_action": "keep",
    }
    trigger = LandingTrigger(config)
    assert (trigger.find_reason(), trigger.find_reason()) == (None, None)
    assert capsys.readouterr().out.count(f"{tmp_path}/in does not exist: check the path, or create it") == 1
    required = LandingTrigger({**config, "fail_on": ["missing-source"]})
    assert required.find_reason() == f"{tmp_path}/in does not exist"
    (tmp_path / "in").mkdir()
    assert required.find_reason() is None


def test_the_wait_ends_with_one_event(landing: Any, tmp_path: Path) -> None:
    """The wait ends with one event, also for a trigger that is created from its serialised form."""
    _, arguments = landing().serialize()
    trigger = LandingTrigger(**json.loads(json.dumps(arguments)))

    async def wait_for_event() -> Any:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        (tmp_path / "in" / "new.json").write_text("{}")
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(wait_for_event()).payload == "1 new files"
