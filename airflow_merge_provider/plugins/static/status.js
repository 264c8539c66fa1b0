// What a run did and how a dataset is, from the reports and the states of task instances: pure functions.
// A run has the keys of a task instance, and perhaps its `instance`, its `report` and its `failure`.

const FAILED = new Set(["failed", "up_for_retry"]);
// A failure counts no longer once another task of the dataset has so many newer results.
const NEWER_RESULTS = 12;

export const isCheck = (report) => report.counts?.overlapping !== undefined;

/** Return whether a run was to write nothing: its counts are not facts. */
export function isDry({ report, failure, instance }) {
  if (failure) return failure.dry_run;
  return report ? report.dry_run || isCheck(report) : /Check/.test(instance?.operator_name ?? "");
}

export function hasWarnings(report) {
  const isRejected = (result) => result.failed > 0 && result.action !== "fail";
  return Boolean(report.warnings?.length || report.expectations?.some(isRejected) || report.counts?.failed);
}

function failed(run) {
  const isRepeated = ["up_for_retry", "queued", "scheduled", "running"].includes(run.instance?.state);
  const text = isDry(run) ? "Check failed" : "Failed";
  return { kind: "bad", status: "failed", text: isRepeated ? `${text}, will be retried` : text };
}

/** Return the result of a run without a report: Airflow's state is all that is known. */
function unreported({ instance }) {
  const state = instance?.state ?? "none";
  if (FAILED.has(state)) return failed({ instance });
  if (state === "upstream_failed") return { kind: "bad", status: "failed", text: "Not run: an earlier task failed" };
  return { kind: "", status: "none", text: state.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase()) };
}

/** Return the result of a run: its text, its colour, and what it means for the dataset. */
export function outcome(run) {
  const { report, failure, instance } = run;
  if (failure) return failed(run);
  if (!report) return unreported(run);
  if (FAILED.has(instance?.state)) return failed(run);
  if (report.plan && !report.dry_run) {
    if (instance?.state === "skipped") return { kind: "", status: "none", text: "Not approved" };
    if (instance && instance.state !== "awaiting_input") return { kind: "", status: "none", text: "Runs after its approval" };
    return { kind: "warn", status: "waiting", text: "Waits for approval" };
  }
  if (isCheck(report)) return { kind: "good", status: "none", text: "Valid" };
  if (report.dry_run) {
    const isUnread = Object.values(report.rows ?? {}).every((count) => count === null);
    return { kind: "", status: "none", text: isUnread ? "Valid" : report.plan?.saved ? "Plan saved" : "Dry run" };
  }
  if (report.run_mode === "undo" && !report.counts?.runs && report.details?.restored?.length) {
    return { kind: "good", status: "load", text: "Runs restored" };
  }
  if (report.run_mode === "undo" && report.changed) return { kind: "warn", status: "undone", text: "Undone" };
  if (report.job === "undo") return { kind: "", status: "none", text: "Nothing to undo" };
  if (!report.changed) return { kind: "", status: "load", text: "Nothing changed" };
  if (hasWarnings(report)) return { kind: "warn", status: "load", text: "Changed with warnings" };
  return { kind: "good", status: "load", text: "Changed" };
}

/** Return the first problem of a failed run, without what to do about it. */
export function firstProblem({ failure }) {
  const [problem] = failure.problems;
  return problem ? [problem.path, problem.message].filter(Boolean).join(": ") : failure.message.split("\n", 1)[0];
}

/** Return how many rows a run has changed, or would change; a plan's counts are never facts. */
export function changes({ report }, format = String) {
  const rows = Object.entries(report?.rows ?? {}).filter(([kind, count]) => kind !== "unchanged" && count);
  if (!rows.length) return "";
  const isPlanned = report.dry_run || report.plan;
  const verbs = { inserted: "insert", updated: "update", deleted: "delete" };
  const texts = rows.map(([kind, count]) => (isPlanned ? `${verbs[kind] ?? kind} ${format(count)}` : `${format(count)} ${kind}`));
  return isPlanned ? `would ${texts.join(", ")}` : texts.join(", ");
}

/** Return the newest result of each task, newest first, since the newest undo. */
function newestOfTasks(results) {
  const key = ({ run }) => JSON.stringify([run.dag_id, run.task_id, run.map_index ?? -1]);
  const undone = results.findIndex(({ status }) => status === "undone");
  const counts = new Map();
  const newest = [];
  for (const result of undone < 0 ? results : results.slice(0, undone + 1)) {
    const count = counts.get(key(result)) ?? 0;
    if (!count && Math.max(0, ...counts.values()) < NEWER_RESULTS) newest.push(result);
    counts.set(key(result), count + 1);
  }
  return newest;
}

/**
 * Return how a dataset is, from its runs, newest first: its status, its last load, and the run that decides.
 * A check or a dry run never counts. A failure of one task is not hidden by another task.
 */
export function datasetStatus(runs) {
  const results = runs.filter((run) => !isDry(run)).map((run) => ({ run, ...outcome(run) }));
  const newest = newestOfTasks(results.filter(({ status }) => status !== "none"));
  const decisive = ["failed", "waiting"].map((name) => newest.find(({ status }) => status === name)).find(Boolean) ?? newest[0];
  const loads = results.filter(({ status }) => status === "load" || status === "undone");
  const load = (loads.find(({ run }) => run.report.changed) ?? loads[0])?.run ?? null;
  const populated = results.find(({ run, status }) => status === "load" && typeof run.report.populated === "boolean");
  const answer = (kind, text) => ({ kind, text, load, run: decisive?.run ?? runs[0] });
  if (decisive?.status === "failed") return answer("bad", "Failed");
  if (decisive?.status === "waiting") return answer("warn", "Waiting for approval");
  if (decisive?.status === "undone") return answer("warn", "Undone");
  if (!load || populated?.run.report.populated === false) return answer("warn", "Never populated");
  if (hasWarnings(load.report)) return answer("warn", "Changed with warnings");
  return answer("good", "Fresh");
}
