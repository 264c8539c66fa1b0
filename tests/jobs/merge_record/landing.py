"""A landing folder with all that a MergeRecord needs, and runs over it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.landing import SIDECAR
from airflow_merge_provider.core.merge_record.plan import NewFiles, PlannedMerge
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record.engine import SparkEngine
from airflow_merge_provider.jobs.merge_record.expectations import RecordCheck
from airflow_merge_provider.jobs.merge_record.files.listing import FileQueue, QueuedFile
from airflow_merge_provider.jobs.merge_record.files.storage import Open, Storage, open_storage
from airflow_merge_provider.jobs.merge_record.job import _resolve_config, run_with
from airflow_merge_provider.jobs.merge_record.writing import StagedFile
from airflow_merge_provider.jobs.undo.files import find_journal, undo_files
from tests.reports import check_report

SECOND = 1_000_000
START = 1_700_000_000
SCHEMA = Schema(({"name": "id", "type": "long"},))

_ENGINE_TEXT = re.compile(r"\[[A-Z]\w+\]|SQLSTATE|\b(org|java|py4j|pyspark)\.|Exception|Traceback|Errno")
# The remedy is in brackets and begins with a verb.
_REMEDY = re.compile(r" \([a-z]+ ")


class PlainEngine(SparkEngine):
    """An engine that counts and moves JSON lines without Spark, for tests of everything else."""

    def __init__(self) -> None:
        pass

    def find_arrivals(
        self, source: Storage, queue: FileQueue, config: MergeRecordConfig, now: int
    ) -> NewFiles:
        return NewFiles(
            tuple(self._build_flowfile(source, file) for file in queue.files), {SCHEMA.build_key(): SCHEMA}
        )

    def check_files(self, *_: Any) -> dict[str, str]:
        return {}

    def check_records(self, *_: Any) -> RecordCheck:
        return RecordCheck()

    def find_lost_values(self, *_: Any) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass

    def _build_flowfile(self, source: Storage, file: QueuedFile) -> FlowFile:
        content = source.read_file(file.entry.name) or b""
        bad = b"bad" in content
        return FlowFile(
            file.uri, file.uuid, file.entry.modified, content.count(b"\n"),
            file.entry.size, SCHEMA.build_key(), file.entry.version, file.entry.size, file.attributes,
            malformed="it is bad (correct it)" if bad else None, sidecar=file.sidecar,
        )  # fmt: skip

    def stage_merges(
        self,
        source: Storage,
        merges: Sequence[PlannedMerge],
        schemas: Mapping[str, Schema],
        config: MergeRecordConfig,
        staging: Storage,
    ) -> dict[str, StagedFile]:
        for merge in merges:
            names = [file.uri.removeprefix(f"{source.location}/") for file in merge.sources]
            contents = [source.read_file(name) or b"" for name in names]
            staging.write_file(f"write-0/{merge.id}", b"".join(contents))
        return {merge.id: StagedFile(f"write-0/{merge.id}", ".json", merge.bytes) for merge in merges}


class Landing:
    """Folders in one place: in, merged, failure, original, state."""

    def __init__(
        self, root: Path, spark: Any = None, engine: SparkEngine | None = None, **settings: Any
    ) -> None:
        self.root = root
        self.engine = engine or (SparkEngine(spark) if spark else PlainEngine())
        self.settings = {"reader": "json", **settings}
        self.runs = 0

    def put_file(self, name: str, content: str | bytes, *, at: float = 0, **attributes: str) -> Path:
        """Write a file that landed ``at`` seconds after the start, with a sidecar if it has attributes."""
        path = self.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (START + at, START + at))
        if attributes:
            path.with_name(f"{path.name}{SIDECAR}").write_text(json.dumps(attributes), encoding="utf-8")
        return path

    def put_records(self, name: str, *records: Any, at: float = 0, **attributes: str) -> Path:
        """Write a file of JSON lines."""
        return self.put_file(
            name, "".join(json.dumps(record) + "\n" for record in records), at=at, **attributes
        )

    def run_job(self, *, at: float = 0, opened: Open = open_storage, **changes: Any) -> dict[str, Any]:
        """Run once, as a task of its own, ``at`` seconds after the start."""
        self.runs += 1
        request_fields = {
            name: changes.pop(name) for name in ("until", "full_refresh", "run_id") if name in changes
        }
        run = RunToken(dag_id="d", run_id=request_fields.pop("run_id", f"r{self.runs}"), task_id="merge")
        folders = {name: name for name in ("merged", "failure", "original")}
        config = {"source": "in", "state_path": "state", **folders, **self.settings, **changes}
        if config.get("original_action", "move") != "move":
            del config["original"]
        at_microseconds = int((START + at) * SECOND)
        request_fields |= {"warehouse": str(self.root), "started_at": at_microseconds}
        request = JobRequest(job="merge_record", config=config, run=run, **request_fields)
        try:
            report = run_with(self.engine, opened, _resolve_config(request), request, Progress(out=str))
            return check_report(report)
        finally:
            self.engine.close()
            if isinstance(self.engine, SparkEngine):
                self._check_reasons()

    def undo_runs(
        self, target: str = "merged", *, opened: Open = open_storage, run_id: str = "", **changes: Any
    ) -> dict[str, Any]:
        """Undo runs of the task, and return the report."""
        self.runs += 1
        run = RunToken(dag_id="d", run_id=run_id or f"u{self.runs}", task_id="undo")
        until = changes.pop("until", "commit")
        request = JobRequest(
            job="undo",
            config={"target": target, **changes},
            run=run,
            warehouse=str(self.root),
            started_at=START * SECOND + self.runs,
            until=until,
        )
        journal = find_journal(resolve_dataset(target, str(self.root)), opened)
        assert journal is not None
        return check_report(undo_files(journal, opened, request, Progress(out=str)))

    def read_files(self) -> dict[str, bytes]:
        """Return the bytes of every file outside the state."""
        contents = self.read_everything()
        return {name: content for name, content in contents.items() if not name.startswith("state/")}

    def read_merged(self) -> list[str]:
        """Return the contents of the merged files, in no defined order."""
        return sorted(path.read_text(encoding="utf-8") for path in self.list_outputs())

    def list_outputs(self) -> list[Path]:
        """Return the merged files that a reader of the folder finds."""
        paths = sorted((self.root / "merged").glob("merged-*"))
        return [path for path in paths if not path.name.endswith(SIDECAR)]

    def read_ids(self) -> list[list[Any]]:
        """Return the ids of the records of each merged file of JSON lines."""
        return sorted(
            [json.loads(line)["id"] for line in content.splitlines()] for content in self.read_merged()
        )

    def list_names(self, folder: str) -> list[str]:
        """Return the files of a folder without their sidecars."""
        paths = (path for path in (self.root / folder).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.root / folder)) for path in paths if SIDECAR not in path.name)

    def read_attributes(self, path: Path) -> dict[str, str]:
        """Return the attributes in the sidecar of a file."""
        attributes: dict[str, str] = json.loads(
            path.with_name(f"{path.name}{SIDECAR}").read_text(encoding="utf-8")
        )
        return attributes

    def read_ledger(self) -> list[dict[str, Any]]:
        """Return all lines of the ledger."""
        files = sorted((self.root / "state" / "ledger").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def _check_reasons(self) -> None:
        """Check that each failed file has a remedy in its reason, and no text of Spark or Java."""
        codes = ("UNREADABLE", "MALFORMED", "VALUE_LOST", "UNWRITABLE")
        for reason in [line["reason"] for line in self.read_ledger() if line.get("code") in codes]:
            assert not _ENGINE_TEXT.search(reason), reason
            assert _REMEDY.search(reason), reason

    def read_everything(self) -> dict[str, bytes]:
        """Return the bytes of every file that a run leaves, except names of runs and times of outputs."""
        contents = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.name.startswith("state-"):
                content = path.read_bytes()
                if path.parent.name == "ledger":
                    content = re.sub(rb'"run":\{[^}]*\},?', b"", content)
                if path.parent.name == "manifests":
                    content = re.sub(rb'"version":"[^"]*",', b"", content)
                contents[str(path.relative_to(self.root))] = content
        return contents
