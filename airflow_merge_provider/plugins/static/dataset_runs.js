// The runs of a dataset from the log of its table, with the failed runs of its tasks, which Airflow knows.

import { ask, badge, el, FAILURE, joinInstances, link, listInstances, listRuns, plain, readRun, runKey, taskPath, time, words } from "./page.js";
import { plot } from "./plot.js";
import { changes, firstProblem, outcome } from "./status.js";

const PENDING = 50;
const COMMAND_LINE = "cli";
const KINDS = ["inserted", "updated", "deleted"];

const OPEN = new Set(["failed", "up_for_retry", "upstream_failed", "awaiting_input"]);

/** Return the runs of the tasks that failed or wait for an approval, and all task instances by run. */
async function listOpen(tasks) {
  const lists = await Promise.all(tasks.map(async (task) => {
    const [{ runs }, instances] = await Promise.all([listRuns(task.dag_id, task.task_id), listInstances([task], 3)]);
    return { runs: joinInstances(runs, instances), instances };
  }));
  const isOpen = ({ instance, keys }) => keys.includes(FAILURE) || OPEN.has(instance?.state);
  const pending = await Promise.all(lists.flatMap(({ runs }) => runs).filter(isOpen).slice(0, PENDING).map(readRun));
  const instances = new Map(lists.flatMap((list) => list.instances).map((instance) => [runKey(instance), instance]));
  return { pending, instances };
}

/** Return the runs of a dataset that wait for the approval of a person. */
export async function listApprovals({ tasks }) {
  const { pending } = await listOpen(tasks ?? []).catch(() => ({ pending: [] }));
  return pending.filter((run) => outcome(run).status === "waiting");
}

const keyOf = ({ dag_id, run_id, task_id, map_index }) => runKey({ dag_id, run_id, task_id, map_index });
const changed = ({ rows }) => (KINDS.some((name) => rows[name] === null) ? null : KINDS.reduce((sum, name) => sum + rows[name], 0));

function status(run) {
  if (run.pending) return outcome(run.pending);
  if (run.undone) return { kind: "", text: "Undone" };
  if (run.kind === "undo") return { kind: "warn", text: "Undo" };
  if (run.kind === "run") return { kind: "good", text: words(run.run_mode ?? "run") };
  return { kind: "", text: run.kind === "other" ? "Other program" : run.kind === "state" ? "State" : "Maintenance" };
}

function sentence(run) {
  if (run.pending?.failure) return firstProblem(run.pending);
  if (run.pending) return changes(run.pending, plain) || "The task ended without a report.";
  if (run.sentence) return `${run.sentence}.`;
  if (run.kind === "state") return "The state of the newest run is kept in the log.";
  return [run.operation, run.author].filter(Boolean).join(" · ") || "–";
}

function row(run, { open }) {
  const facts = [run.number ? `run ${plain(run.number)}` : null, run.approved_by ? `approved by ${run.approved_by}` : null];
  const isTask = run.dag_id && run.run_id && run.dag_id !== COMMAND_LINE;
  const by = isTask ? `${run.dag_id} · ${run.task_id}` : run.run_id;
  const isShown = run.version > 0 && KINDS.some((name) => run.rows?.[name] !== 0) && !run.pending && !["state", "maintenance"].includes(run.kind);
  const button = el("button", { type: "button", class: "plain" }, "changed rows");
  button.addEventListener("click", () => open("changes", { first: run.version - 1, last: run.version }));
  return el("tr", { id: run.pending ? null : `version-${run.version}`, tabindex: "-1" },
    el("td", { class: "nowrap" }, isTask ? link(taskPath(run), time(run.time), run.run_id) : time(run.time)),
    el("td", {}, badge(status(run))),
    el("td", {}, sentence(run), el("div", { class: "quiet" }, [by, ...facts].filter(Boolean).join(" · "), isShown ? [" · ", button] : null)),
    el("td", { class: "number" }, run.pending ? "" : plain(run.version)));
}

function plots(runs, instances) {
  const points = runs.filter(({ kind }) => ["run", "undo"].includes(kind)).reverse();
  const show = (index) => {
    const line = document.getElementById(`version-${points[index].version}`);
    line?.scrollIntoView({ block: "center" });
    line?.focus();
  };
  const draw = (name, read, isLine) => plot(name, points.map((run) => {
    const value = read(run);
    return { value, title: `version ${plain(run.version)}, ${time(run.time)}: ${plain(value)}` };
  }), show, isLine);
  return el("div", { class: "plots" },
    draw("Rows changed", changed), draw("Live rows", ({ live_rows }) => live_rows, true),
    draw("Seconds of the task", (run) => instances.get(keyOf(run))?.duration ?? null));
}

export async function showRuns({ dataset, show, open }) {
  const path = `/${dataset.asset_id}/runs`;
  const nothing = { pending: [], instances: new Map() };
  const [first, { pending, instances }] = await Promise.all([
    ask(path).catch((error) => ({ runs: [], next: null, error })),
    listOpen(dataset.tasks ?? []).catch(() => nothing),
  ]);
  const runs = [...first.runs];
  const committed = new Set();
  let next = first.next;
  const more = el("button", { type: "button" }, "Older runs");
  const render = () => {
    runs.forEach((run) => committed.add(keyOf(run)));
    const oldest = next ? new Date(runs.at(-1).time) : 0;
    // A task that failed after its commit is a run of the log.
    const gaps = pending.filter((run) => !committed.has(keyOf(run)) && new Date(run.timestamp) >= oldest)
      .map((run) => ({ ...run, pending: run, time: run.timestamp }));
    const lines = [...runs, ...gaps].sort((a, b) => new Date(b.time) - new Date(a.time) || (b.version ?? 0) - (a.version ?? 0));
    const titles = ["Time", "Result", "What it did", "Version"];
    const table = el("table", {},
      el("thead", {}, el("tr", {}, titles.map((title) => el("th", { class: title === "Version" ? "number" : "" }, title)))),
      el("tbody", {}, lines.map((run) => row(run, { open }))));
    show(
      first.error ? el("p", { class: "error" }, first.error.detail ?? first.error.message) : null,
      plots(runs, instances),
      lines.length ? el("section", { class: "card" }, table) : el("p", { class: "quiet" }, "No run has written this dataset yet."),
      next ? el("p", {}, more) : null);
  };
  more.addEventListener("click", async () => {
    more.disabled = true;
    const page = await ask(path, { before: next }).catch((error) => ({ runs: [], next: null, error }));
    if (page.error) more.replaceWith(el("p", { class: "error" }, page.error.detail ?? page.error.message));
    else {
      runs.push(...page.runs);
      next = page.next;
      more.disabled = false;
      render();
    }
  });
  render();
}
