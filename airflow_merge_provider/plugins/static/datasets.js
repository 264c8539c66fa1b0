// The page of every dataset that merges in this Airflow write: how it is, its last load and its runs.

import {
  api, badge, datasetPath, el, field, joinInstances, link, listInstances, listRuns, plain, readPages, readRun, show, sortNewest, taskKey, taskPath, time, trouble,
} from "./page.js";
import { changes, datasetStatus, firstProblem, outcome } from "./status.js";

const SHOWN = 12;
// The datasets that the list shows at once.
const SHOWN_ROWS = 100;
// The results that are read of one task at most, to find its last load and all of its targets.
const READ = 120;
const OPERATORS = ["MergeSource", "MergeEngine", "Scd2", "DeleteInsert", "Upsert", "MergeRecord", "Joiner", "Undo"]
  .flatMap((name) => [`${name}Operator`, `${name}DecoratedOperator`]);

const nameOf = (run) => run.report?.target?.uri ?? run.report?.target?.dataset;

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
}

/** Read the newest results of a task; further ones if it has several targets, or no load among them. */
async function readTask(runs) {
  for (let start = 0; start < Math.min(runs.length, READ); start += SHOWN) {
    await Promise.all(runs.slice(start, start + SHOWN).map(readRun));
    const results = runs.slice(0, start + SHOWN);
    const targets = new Set(results.map(nameOf).filter(Boolean));
    if (targets.size === 1 && datasetStatus(results).load) break;
  }
  return runs.filter((run) => run.report || run.failure || !run.keys.length);
}

/** Return the failed task instances of merges that have no result at all, e.g. because their first run was killed. */
async function listUnreported(known) {
  const query = { operator: OPERATORS, state: ["failed", "upstream_failed", "up_for_retry"], order_by: "-start_date" };
  const { items } = await readPages(async (limit, offset) =>
    (await api("dags/~/dagRuns/~/taskInstances", { ...query, limit, offset })).task_instances).catch(() => ({ items: [] }));
  return items.filter((instance) => !known.has(taskKey(instance)));
}

/** Return the runs by their dataset: a run without a report has the target of the other runs of its task. */
function byDataset(tasks) {
  const targets = new Map();
  const names = new Map();
  for (const runs of tasks) for (const run of runs) if (run.report?.target) names.set(run.report.target.dataset, nameOf(run));
  for (const runs of tasks) {
    const usual = nameOf(runs.find(nameOf) ?? {});
    for (const run of runs) {
      const { target, merged } = run.instance?.rendered_fields ?? {};
      const configured = run.failure?.dataset ?? (typeof (target ?? merged) === "string" ? target ?? merged : null);
      const name = nameOf(run) ?? names.get(configured) ?? usual ?? configured ?? `${run.dag_id} · ${run.task_id}`;
      if (!targets.has(name)) targets.set(name, []);
      targets.get(name).push(run);
    }
  }
  return [...targets.entries()].map(([name, runs]) => ({ name, runs: sortNewest(runs) }));
}

function dots(runs) {
  return el("div", { class: "dots" }, runs.slice(0, SHOWN).reverse().map((run) => {
    const { kind, text } = outcome(run);
    const title = [text, changes(run, plain), time(run.timestamp)].filter(Boolean).join(", ");
    return link(taskPath(run), el("div", { class: `dot ${kind}` }), title);
  }));
}

/** Return a line about what decides the status: the change that waits, or the error. */
function detail({ run, text }) {
  if (text === "Waiting for approval") return changes(run, plain);
  if (text !== "Failed") return "";
  return run.failure ? firstProblem(run) : outcome(run).text;
}

/** Return what the list shows of a dataset, and by what it is searched and sorted. */
function describe({ name, runs }) {
  const target = runs.map(({ report }) => report?.target).find(Boolean);
  const dataset = target?.dataset ?? runs[0].failure?.dataset ?? name;
  const newest = runs.find(({ report, failure }) => Number.isInteger(failure?.version) || (report && !report.dry_run));
  const version = newest?.failure?.version ?? newest?.report?.target?.version;
  return { dataset, uri: target?.uri ?? dataset, version, status: datasetStatus(runs), runs };
}

function row({ dataset, uri, version, status, runs }) {
  const { load, run } = status;
  return el("tr", {},
    el("td", {}, el("a", { href: datasetPath(run) }, el("b", {}, dataset)), uri !== dataset ? [el("br"), el("code", { class: "quiet" }, uri)] : null),
    el("td", {}, link(taskPath(run), badge(status)), el("div", { class: "quiet short" }, detail(status))),
    el("td", { class: "number" }, plain(version)),
    load
      ? el("td", { class: "nowrap" }, link(taskPath(load), time(load.timestamp)), el("br"), el("span", { class: "quiet" }, `${load.dag_display_name} · ${load.task_display_name}`))
      : el("td", { class: "quiet" }, "–"),
    el("td", { class: "quiet" }, load ? changes(load, plain) || "no row changed" : ""),
    el("td", {}, dots(runs)));
}

// What a column is sorted by, and whether it begins with the largest.
const ORDERS = {
  Dataset: [({ dataset }) => dataset.toLowerCase()],
  Status: [({ status }) => ["bad", "warn", "good", ""].indexOf(status.kind)],
  Version: [({ version }) => version ?? -1, true],
  "Last load": [({ status }) => status.load?.timestamp ?? "", true],
};

/** Return the table of datasets, which can be searched, sorted and paged, with its controls. */
export function list(entries) {
  const search = el("input", { type: "search" });
  const chosen = el("select", {}, ["all", ...new Set(entries.map(({ status }) => status.text))].map((text) => el("option", {}, text)));
  const body = el("tbody", {});
  const more = el("button", { type: "button" }, "More datasets");
  const extent = el("p", { class: "quiet", "aria-live": "polite" });
  const order = { name: null, isReversed: false };
  let count = SHOWN_ROWS;
  const render = () => {
    const text = search.value.toLowerCase();
    const matches = entries.filter(({ dataset, uri, status }) =>
      `${dataset} ${uri}`.toLowerCase().includes(text) && ["all", status.text].includes(chosen.value));
    if (order.name) {
      const [read, isDescending] = ORDERS[order.name];
      const sign = order.isReversed === Boolean(isDescending) ? 1 : -1;
      matches.sort((a, b) => (read(a) === read(b) ? 0 : read(a) < read(b) ? -sign : sign));
    }
    body.replaceChildren(...matches.slice(0, count).map(row));
    extent.replaceChildren(matches.length < entries.length ? `${plain(matches.length)} of ${plain(entries.length)} datasets` : "");
    more.hidden = matches.length <= count;
  };
  const restart = () => { count = SHOWN_ROWS; render(); };
  search.addEventListener("input", restart);
  chosen.addEventListener("change", restart);
  more.addEventListener("click", () => { count += SHOWN_ROWS; render(); });
  const titles = ["Dataset", "Status", "Version", "Last load", "Rows", "Runs"].map((name) => {
    const title = el("th", { class: name === "Version" ? "number" : "" }, name in ORDERS ? el("button", { type: "button", class: "plain" }, name) : name);
    title.addEventListener("click", () => {
      if (!(name in ORDERS)) return;
      Object.assign(order, { name, isReversed: order.name === name && !order.isReversed });
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", order.isReversed === Boolean(ORDERS[name][1]) ? "ascending" : "descending");
      render();
    });
    return title;
  });
  render();
  return [
    el("div", { class: "controls" }, field("name contains", search), field("status", chosen)), extent,
    el("section", { class: "card" }, el("table", {}, el("thead", {}, el("tr", {}, titles)), body)), more,
  ];
}

async function collect() {
  const { runs, isComplete } = await listRuns();
  const [instances, unreported] = await Promise.all([
    listInstances(runs).catch(() => []), listUnreported(new Set(runs.map(taskKey))),
  ]);
  const joined = joinInstances(runs, [...instances, ...unreported]);
  const tasks = await Promise.all([...groupBy(joined, taskKey).values()].map(readTask));
  return { datasets: byDataset(tasks), count: joined.length, isComplete };
}

async function start() {
  try {
    const { datasets, count, isComplete } = await collect();
    const title = el("div", { class: "head" }, el("h1", {}, "Merged datasets"));
    if (!datasets.length) {
      return show(title, el("p", { class: "empty quiet" }, "No merge has run yet. This page lists every dataset that a merge writes."));
    }
    const extent = `${isComplete ? "from" : "from the newest"} ${plain(count)} ${count === 1 ? "run" : "runs"}`;
    show(title,
      el("p", { class: "under" }, `${plain(datasets.length)} ${datasets.length === 1 ? "dataset" : "datasets"}, ${extent}`),
      list(datasets.map(describe)));
  } catch (error) {
    trouble(error);
  }
}

if (document.getElementById("page")) start();
