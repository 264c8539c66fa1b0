"""Execution of the merges of a plan: write the outputs, recheck their sources, publish or withdraw them.

Source: docs/semantics/merge_record.md, Steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.errors import JobError
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.journal import Manifest
from airflow_merge_provider.core.merge_record.landing import SIDECAR, FileEntry, Listing
from airflow_merge_provider.core.merge_record.plan import Plan, PlannedMerge
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record.engine import SparkEngine
from airflow_merge_provider.jobs.merge_record.files.journal import Journal, to_json
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.routing import Folders
from airflow_merge_provider.jobs.merge_record.writing import StagedFile

_FILE_PREFIX = "merged"
_LEASE_ID_CHARS = 8


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of publishing a plan.

    ``manifests`` holds the manifests of published merges by merge ID. Every other merge has been withdrawn,
    because one of its files is in ``changed`` (URIs), or because ``error`` prevented it from being written.
    """

    manifests: Mapping[str, Manifest]
    changed: tuple[str, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Publisher:
    """The execution of the merges of one plan; each step may be repeated after a crash."""

    engine: SparkEngine
    journal: Journal
    folders: Folders
    config: MergeRecordConfig
    progress: Progress
    opened: Callable[[str], Storage]
    list_files: Callable[[], Listing]

    def publish_plan(self, plan: Plan, *, is_resumed: bool) -> PublishResult:
        """Publish every merge that is neither published nor withdrawn and whose files have not changed.

        :param is_resumed: whether a run before may have carried out a part of the plan.
        :raises ConflictError: when another run has gone on with the plan.
        """
        if not plan.merges:
            return PublishResult({})
        prefix = f"_staging-{self.journal.key}-"
        staging = f"{prefix}{self.journal.lease.id[:_LEASE_ID_CHARS]}"
        # Staging folders of all plans are removed. With Spark Connect, a job continues after its client has
        # been killed, and may write files again that a retry has removed.
        for staging_folder in self.folders.merged.list_prefixed(prefix):
            self.folders.merged.delete_path(staging_folder)
        manifests, undecided = self._find_decided(plan) if is_resumed else ({}, list(plan.merges))
        changed: list[str] = []
        if is_resumed:
            undecided, changed = self._split_off_changed(undecided)
        error: Exception | None = None
        while undecided and error is None:
            undecided, changed_uris, error = self._write_merges(plan, undecided, staging, manifests)
            changed += changed_uris
        if self.folders.merged.list_prefixed(staging):
            self.folders.merged.delete_path(staging)
        for merge in plan.merges:
            if merge.id not in manifests:
                self.journal.withdraw_merge(merge.id)
        return PublishResult(manifests, tuple(changed), error)

    def _write_merges(
        self, plan: Plan, merges: Sequence[PlannedMerge], folder: str, manifests: dict[str, Manifest]
    ) -> tuple[list[PlannedMerge], list[str], Exception | None]:
        """Write merges and publish those whose files have not changed meanwhile.

        :return: the merges to retry, the changed files (URIs), and the error if no file has changed.
        """
        staging = self.opened(self.folders.merged.build_uri(folder))
        try:
            with self.progress.time_step("write"):
                staged = self.engine.stage_merges(
                    self.folders.source, merges, plan.schemas, self.config, staging
                )
        except Exception as error:  # noqa: BLE001 - raised again once the plan is reduced to published merges
            unchanged_merges, changed = self._split_off_changed(merges)
            if changed:
                # The error is assumed to come from the changed or missing files.
                self.folders.merged.delete_path(folder)
                return unchanged_merges, changed, None
            return [], [], error
        unchanged_merges, changed = self._split_off_changed(merges)
        with self.progress.time_step("publish"):
            published = self.folders.merged.for_each(
                lambda merge: self._publish_merge(merge, staged[merge.id], staging), unchanged_merges
            )
        manifests |= {manifest.merge_id: manifest for manifest in published}
        return [], changed, None

    def _publish_merge(self, merge: PlannedMerge, staged: StagedFile, staging: Storage) -> Manifest:
        """Write the sidecar of a merged file, move the file to the target, and commit its manifest."""
        merged, name = self.folders.merged, f"{_FILE_PREFIX}-{merge.id}{staged.suffix}"
        merged.write_file(f"{name}{SIDECAR}", to_json(_describe_output(merge, name), indent=1))
        self.journal.lease.check_lease()
        staging.move_file(staged.name, merged, name)
        entry = merged.find_entry(name)
        if entry is None or entry.size != staged.size:
            uri = merged.build_uri(name)
            raise JobError(f"{uri}: another program has changed the new file: retry the task")
        return self._commit_output(merge, entry)

    def _find_output(self, merge: PlannedMerge) -> Manifest | None:
        """Commit an output that a run had moved to the target before it crashed; None if there is none."""
        prefixed_names = self.folders.merged.list_prefixed(f"{_FILE_PREFIX}-{merge.id}")
        names = [name for name in prefixed_names if not name.endswith(SIDECAR)]
        entry = self.folders.merged.find_entry(names[0]) if names else None
        return None if entry is None else self._commit_output(merge, entry)

    def _commit_output(self, merge: PlannedMerge, entry: FileEntry) -> Manifest:
        manifest = Manifest(
            merge.id,
            uri=self.folders.merged.build_uri(entry.name),
            records=merge.records,
            bytes=entry.size,
            version=entry.version,
            reason=merge.reason.text,
            code=merge.reason.code,
            attributes=_describe_output(merge, entry.name),
            sources=tuple(source.uri for source in merge.sources),
        )
        self.journal.publish_merge(manifest)
        return manifest

    def _find_decided(self, plan: Plan) -> tuple[dict[str, Manifest], list[PlannedMerge]]:
        """Return the manifests of merges that an earlier run has published, and the undecided merges."""
        manifests: dict[str, Manifest] = {}
        undecided: list[PlannedMerge] = []
        for merge in plan.merges:
            manifest = self.journal.read_manifest(merge.id)
            # A run may have crashed after it moved the output and before it wrote the manifest.
            manifest = manifest or self._find_output(merge)
            if manifest is None:
                undecided.append(merge)
            elif not manifest.withdrawn:
                manifests[merge.id] = manifest
        return manifests, undecided

    def _split_off_changed(self, merges: Sequence[PlannedMerge]) -> tuple[list[PlannedMerge], list[str]]:
        """Return the merges whose files have not changed since planning, and the changed files (URIs)."""
        versions = {source.uri: source.version for merge in merges for source in merge.sources}
        changed = set(self.list_files().find_changed(versions))
        unchanged_merges = [
            merge for merge in merges if changed.isdisjoint(source.uri for source in merge.sources)
        ]
        return unchanged_merges, sorted(changed)


def _describe_output(merge: PlannedMerge, name: str) -> dict[str, str]:
    return {"filename": name, "path": "./", **merge.attributes, "uuid": merge.id}
