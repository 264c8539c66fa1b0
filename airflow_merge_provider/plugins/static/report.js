// The page of one merge: its result, the versions that it read, its duration, and the previous runs.

import {
  api, badge, el, isObject, link, outcome, part, plain, reportOf, reports, show, taskPath, time, trouble, withReports, words, xcomOf,
} from "./page.js";
import { COUNTS, ROWS } from "./counts.js";

const params = Object.fromEntries(new URLSearchParams(window.location.search));
const mapped = Number.parseInt(params.map_index ?? "-1", 10);
const task = { ...params, map_index: Number.isNaN(mapped) ? -1 : mapped };
const KINDS = { inserted: "good", updated: "warn", deleted: "bad" };
const OVER = new Set(["success", "failed", "skipped", "upstream_failed", "removed"]);

function head(report, instance) {
  const target = report.target ?? {};
  const facts = [instance?.operator_name ?? words(report.job ?? "merge"), words(report.run_mode)];
  if (target.version !== null && target.version !== undefined) facts.push(`version ${plain(target.version)}`);
  if (instance?.duration) facts.push(`${plain(instance.duration)} s`);
  if (instance?.end_date) facts.push(time(instance.end_date));
  const under = [facts.join(" · "), el("br"), report.run_mode_reason];
  if (report.approved_by) under.push(`; approved by ${report.approved_by}`);
  if (target.uri && target.uri !== target.dataset) under.push(el("br"), el("code", {}, target.uri));
  return [
    el("div", { class: "head" }, el("h1", {}, target.dataset ?? target.uri ?? "Merge report"), badge(outcome(report))),
    el("p", { class: "under" }, under),
  ];
}

function card(title, content, wide = false) {
  return el("section", { class: wide ? "card wide" : "card" }, el("h2", {}, title), content);
}

function tiles(values, described = {}) {
  const one = ([name, value]) => el("div", { class: "tile", title: described[name] },
    el("b", {}, plain(value)), el("span", {}, words(name)));
  return el("div", { class: "tiles" }, Object.entries(values).map(one));
}

/** Show the counts of the run; counts that are 0 are listed in one line below. */
function counts(report) {
  const described = COUNTS[report.job] ?? {};
  const entries = Object.entries(report.counts);
  const some = Object.fromEntries(entries.filter(([, value]) => value));
  const none = entries.filter(([, value]) => value === 0).map(([name]) => el("span", { title: described[name] }, words(name)));
  const quiet = none.length ? el("p", { class: "quiet none" }, "Counts that are 0: ", none.flatMap((name, index) => (index ? [", ", name] : [name]))) : null;
  return [Object.keys(some).length ? tiles(some, described) : null, quiet];
}

function bars(values, unit = "") {
  const entries = Object.entries(values);
  const most = Math.max(...entries.map(([, value]) => value), 0);
  return el("div", { class: "bars" }, entries.flatMap(([name, value]) => [
    el("span", { class: "name" }, words(name)),
    el("progress", { max: most || 1, value, "aria-label": words(name) }),
    el("span", { class: "value" }, `${plain(value)}${unit}`),
  ]));
}

function table(rows) {
  const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const kind = (name) => (rows.every((row) => row[name] === undefined || typeof row[name] === "number") ? "number" : "");
  return el("table", {},
    el("thead", {}, el("tr", {}, columns.map((name) => el("th", { class: kind(name) }, words(name))))),
    el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((name) => el("td", { class: kind(name) }, plain(row[name])))))));
}

function sources(datasets) {
  const rows = Object.entries(datasets).map(([name, source]) => el("tr", {},
    el("td", {}, name, source?.uri && source.uri !== name ? [el("br"), el("code", { class: "quiet" }, source.uri)] : null),
    el("td", { class: "number" }, plain(source?.version)), el("td", { class: "number" }, plain(source?.rows))));
  const numbers = ["Version", "Rows"].map((name) => el("th", { class: "number" }, name));
  const titles = el("tr", {}, el("th", {}, "Dataset"), numbers);
  return el("table", {}, el("thead", {}, titles), el("tbody", {}, rows));
}

/** Show values in a table with their names; a list has one line per element. */
function facts(value) {
  const lines = (fact) => (Array.isArray(fact) ? fact.map((element) => el("div", {}, el("code", {}, plain(element)))) : plain(fact));
  return el("table", {}, el("tbody", {}, Object.entries(value).map(([name, fact]) =>
    el("tr", {}, el("td", { class: "quiet nowrap" }, words(name)), el("td", {}, lines(fact))))));
}

/** Return whether a value has anything to show. */
function says(value) {
  if (Array.isArray(value)) return value.length > 0;
  if (isObject(value)) return Object.values(value).some(says);
  return Boolean(value);
}

/** Show details of a job by their type: numbers as bars, rows as a table, other values by name. */
function more(name, value) {
  if (!says(value)) return null;
  const entries = isObject(value) ? Object.entries(value) : [];
  if (entries.length) {
    const allNumbers = entries.every(([, number]) => typeof number === "number");
    return card(words(name), allNumbers ? bars(value) : facts(value));
  }
  if (Array.isArray(value) && value.length && value.every(isObject)) return card(words(name), table(value), true);
  return card(words(name), el("code", {}, Array.isArray(value) ? value.map(plain).join(", ") : plain(value)));
}

function notes(lines) {
  return el("ul", { class: "notes" }, lines.map((line) => el("li", {}, plain(line))));
}

/** Show how many rows each expectation was checked on, how many failed, and what happened to them. */
function expected(results) {
  const rows = results.map((result) => el("tr", {},
    el("td", {}, result.name, el("br"), el("code", { class: "quiet" }, result.condition)),
    el("td", {}, result.source ?? "changes"),
    el("td", {}, badge(result.failed ? { kind: result.action === "fail" ? "bad" : "warn", text: result.action } : { kind: "good", text: "met" })),
    el("td", { class: "number" }, plain(result.failed)), el("td", { class: "number" }, plain(result.rows)),
    el("td", {}, result.examples.map((example) => el("div", {}, el("code", {}, plain(example)))))));
  const titles = ["Expectation", "Rows of", "Result", "Failed", "Rows", "Examples"];
  return el("table", {},
    el("thead", {}, el("tr", {}, titles.map((name) => el("th", { class: ["Failed", "Rows"].includes(name) ? "number" : "" }, name)))),
    el("tbody", {}, rows));
}

/** Show the rows that a plan changes: their kind and reason, and the values before and after. */
function planned(plan) {
  const cell = (row, name) => (row && row[name] !== undefined ? plain(row[name]) : "NULL");
  const values = (example) => {
    const names = [...new Set([...Object.keys(example.before ?? {}), ...Object.keys(example.after ?? {})])];
    return names.map((name) => {
      const [before, after] = [cell(example.before, name), cell(example.after, name)];
      const text = (value) => el("span", {}, `${name} = ${value}`);
      if (!example.before) return el("div", { class: "gained" }, text(after));
      if (!example.after) return el("div", { class: "lost" }, text(before));
      if (before === after) return el("div", {}, text(after));
      return el("div", {}, el("span", { class: "lost" }, `${name} = ${before}`), " → ", el("span", { class: "gained" }, after));
    });
  };
  const rows = plan.examples.map((example) => el("tr", {},
    el("td", { class: "nowrap" }, badge({ kind: KINDS[example.kind] ?? "", text: words(example.kind) })),
    el("td", {}, values(example)),
    el("td", {}, words(example.reason), example.detail ? [el("br"), el("span", { class: "quiet" }, example.detail)] : null)));
  const titles = el("tr", {}, ["Change", "Row", "Reason"].map((name) => el("th", {}, name)));
  const total = Object.values(plan.kinds).reduce((sum, count) => sum + count, 0);
  const where = plan.saved ? [" All of them are in ", el("code", {}, plan.saved.uri), `, version ${plain(plan.saved.version)}.`] : null;
  return card("Planned changes", el("div", {},
    tiles(Object.fromEntries(Object.entries(plan.reasons))),
    el("p", { class: "quiet" }, `${plain(plan.examples.length)} of ${plain(total)} changed rows.`, where),
    (plan.other_changes ?? []).map((change) => el("p", {}, change)),
    plan.examples.length ? el("table", { class: "changes" }, el("thead", {}, titles), el("tbody", {}, rows)) : null), true);
}

async function history() {
  const entries = await reports(task.dag_id, task.task_id, { limit: 10, map_index: task.map_index });
  const runs = await withReports(entries);
  if (runs.length < 2) return null;
  const names = Object.keys(runs[0].report.rows ?? {});
  const titles = ["Run", "Result", "Mode", "Version", ...names.map(words)];
  const rows = runs.map((run) => el("tr", {},
    el("td", { class: "nowrap" }, run.run_id === task.run_id
      ? el("b", {}, time(run.timestamp)) : link(taskPath(run), time(run.timestamp), run.run_id)),
    el("td", {}, badge(outcome(run.report))),
    el("td", { title: run.report.run_mode_reason }, words(run.report.run_mode ?? "")),
    el("td", { class: "number" }, plain(run.report.target?.version)),
    names.map((name) => el("td", { class: "number" }, plain(run.report.rows?.[name])))));
  return card("Runs of this task", el("table", {},
    el("thead", {}, el("tr", {}, titles.map((title, index) => el("th", { class: index > 2 ? "number" : "" }, title)))),
    el("tbody", {}, rows)), true);
}

async function instanceOf() {
  const path = `dags/${part(task.dag_id)}/dagRuns/${part(task.run_id)}/taskInstances/${part(task.task_id)}`;
  return api(task.map_index >= 0 ? `${path}/${task.map_index}` : path).catch(() => null);
}

function absent(instance) {
  const operator = instance?.operator_name ?? instance?.operator ?? "";
  const state = instance?.state ?? null;
  if (!/Merge|Scd2|DeleteInsert|Upsert|Joiner/.test(operator)) {
    return show(el("p", { class: "empty quiet" }, "This task does not run a merge, so it has no merge report."));
  }
  if (OVER.has(state)) {
    const message = state === "failed"
      ? "The merge failed. The task log contains the error."
      : "This run of the task has no report.";
    return show(el("div", { class: "head" }, el("h1", {}, "Merge report"), badge({ kind: state === "failed" ? "bad" : "", text: words(state) })),
      el("p", { class: "under" }, message));
  }
  show(el("div", { class: "head" }, el("h1", {}, "Merge report"), badge({ kind: "", text: words(state ?? "not started") })),
    el("p", { class: "under" }, "The report appears here when the merge is complete."));
  window.setTimeout(start, 5000);
}

async function start() {
  if (!params.dag_id || !params.run_id || !params.task_id) {
    return show(el("p", { class: "empty quiet" }, "Open this page from a task instance."));
  }
  try {
    const [report, instance, plan] = await Promise.all([reportOf(task), instanceOf(), xcomOf(task, "merge_plan")]);
    if (report === null) return absent(instance);
    const cards = el("div", { class: "cards" },
      plan ? planned(plan) : null,
      report.warnings?.length ? card("Warnings", notes(report.warnings), true) : null,
      report.expectations?.length ? card("Expectations", expected(report.expectations), true) : null,
      isObject(report.sources) && Object.keys(report.sources).length ? card("Sources", sources(report.sources)) : null,
      isObject(report.seconds) && Object.keys(report.seconds).length ? card("Seconds per step", bars(report.seconds, " s")) : null,
      Object.entries(report.details ?? {}).map(([name, value]) => more(name, value)),
      report.truncated?.length
        ? card("Truncated", el("span", { class: "quiet" }, `Too long for an XCom: ${report.truncated.join(", ")}. The task log contains the full report.`)) : null);
    show(head(report, instance), tiles(report.rows ?? {}, ROWS), counts(report), cards);
    const historyCard = await history().catch(() => null);
    if (historyCard) cards.append(historyCard);
  } catch (error) {
    trouble(error);
  }
}

start();
