"""Execution of the merges of a plan: write the outputs, recheck their sources, publish or withdraw them.

Source: docs/semantics/merge_record.md, Steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.journal import Manifest
from airflow_merge_provider.core.merge_record.landing import Listing
from airflow_merge_provider.core.merge_record.plan import Plan, PlannedMerge
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_record import routing
from airflow_merge_provider.jobs.merge_record.engine import Engine
from airflow_merge_provider.jobs.merge_record.files.journal import Journal
from airflow_merge_provider.jobs.merge_record.files.storage import Storage
from airflow_merge_provider.jobs.merge_record.routing import Folders

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

    engine: Engine
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
            manifests |= routing.publish_merges(unchanged_merges, staged, staging, self.folders, self.journal)
        return [], changed, None

    def _find_decided(self, plan: Plan) -> tuple[dict[str, Manifest], list[PlannedMerge]]:
        """Return the manifests of merges that an earlier run has published, and the undecided merges."""
        manifests: dict[str, Manifest] = {}
        undecided: list[PlannedMerge] = []
        for merge in plan.merges:
            manifest = self.journal.read_manifest(merge.id)
            # A run may have crashed after it moved the output and before it wrote the manifest.
            manifest = manifest or routing.find_output(merge, self.folders, self.journal)
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
