// The page of one merge: its result, the versions that it read, its duration, and the previous runs.

import {
  api, badge, datasetPath, el, exact, FAILURE, isObject, joinInstances, link, listInstances, listRuns, outerLink, part, plain, readRun, REPORT, show, taskPath, time,
  trouble, words, xcomOf,
} from "./page.js";
import { COUNTS, ROWS } from "./counts.js";
import { changes, firstProblem, isCheck, outcome } from "./status.js";

const params = Object.fromEntries(new URLSearchParams(window.location.search));
const mapped = Number.parseInt(params.map_index ?? "-1", 10);
const task = { ...params, map_index: Number.isNaN(mapped) ? -1 : mapped };
const HISTORY = 10;
const KINDS = { inserted: "good", updated: "warn", deleted: "bad" };
const OVER = new Set(["success", "failed", "skipped", "upstream_failed", "removed"]);

/** Return the title of a run, its result and when it ran; the sentence of its report says what it did. */
function head(run, title = null) {
  const { report, failure, instance } = run;
  const target = report?.target ?? {};
  const facts = [instance?.operator_name ?? words(report?.job ?? failure?.job ?? "merge")];
  if (report && !failure && !report.dry_run && Number.isInteger(target.version)) facts.push(`version ${plain(target.version)}`);
  if (instance?.duration) facts.push(`${plain(instance.duration)} s`);
  if (instance?.end_date) facts.push(time(instance.end_date));
  if (instance?.try_number > 1) facts.push(`try ${plain(instance.try_number)}`);
  const under = [facts.join(" · ")];
  if (target.dataset) under.push(" · ", el("a", { href: datasetPath(task) }, "all runs and rows of the dataset"));
  if (report?.approved_by) under.push(` · approved by ${report.approved_by}`);
  if (target.uri && target.uri !== target.dataset) under.push(el("br"), el("code", {}, target.uri));
  return [
    el("div", { class: "head" }, title ?? el("h1", {}, target.dataset ?? target.uri ?? "Merge report"), badge(outcome(run))),
    el("p", { class: "under" }, under),
  ];
}

/** Return the sentence about a run, and why it read what it did. */
function sentence({ report }) {
  const reason = ["noop", "undo"].includes(report.run_mode)
    ? null : el("p", { class: "quiet" }, `${words(report.run_mode)} run: ${report.run_mode_reason}.`);
  return [report.summary ? el("p", { class: "lead" }, `${report.summary}.`) : null, reason];
}

/** Return the error of a run with its remedy, what became of the target, and where to read on. */
function failed({ report, failure, instance }, known) {
  const links = [link(taskPath(task, ""), "Task log")];
  if (failure?.page) links.push(outerLink(failure.page, "Errors and remedies"));
  // A message that says more than its first problem is shown as it is.
  const hint = failure?.problems[0]?.hint;
  const isSingle = hint && failure.message === `${firstProblem({ failure })} (${hint})`;
  const unknown = report
    ? "The task failed after the report of its run, or was marked as failed: see its log."
    : "The task ended without a report: its process was killed, or it failed before the merge began.";
  const text = isSingle
    ? [el("p", { class: "error" }, firstProblem({ failure })), el("p", {}, el("b", {}, "What to do: "), hint)]
    : el("p", { class: "error" }, failure?.message ?? unknown);
  const retry = instance?.state === "up_for_retry" ? "Airflow will retry the task. " : failure?.retryable ? "A retry can succeed. " : "";
  return card("What went wrong", [
    text,
    el("p", {}, failure ? [el("b", {}, failure.outcome), "."] : known),
    el("p", { class: "quiet" }, retry, failure ? ["Error code ", el("code", {}, failure.code), " · "] : null, links.flatMap((item, index) => (index ? [" · ", item] : [item]))),
  ], true);
}

function card(title, content, wide = false) {
  return el("section", { class: wide ? "card wide" : "card" }, el("h2", {}, title), content);
}

/** Return a part of the report that is closed at first. */
function folded(title, content) {
  return el("details", { class: "card wide" }, el("summary", {}, title), content);
}

function tiles(values, described = {}) {
  const one = ([name, value]) => el("div", { class: "tile", title: described[name] },
    el("b", {}, plain(value)), el("span", {}, words(name)));
  return el("div", { class: "tiles" }, Object.entries(values).map(one));
}

/** Show all counts of the run; counts that are 0 are listed in one line below. */
function counts(report, described) {
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

/** Show how many pairs each match rule links, and for how many rows it is the only link. */
function rules(list) {
  const most = Math.max(...list.map((rule) => rule.pairs ?? 0), 1);
  const rows = list.map((rule) => el("tr", {},
    el("td", {}, el("code", {}, rule.rule)),
    el("td", { class: "number" }, plain(rule.pairs)), el("td", { class: "number" }, plain(rule.sole_evidence)),
    el("td", { class: "bars" }, el("progress", { max: most, value: rule.pairs ?? 0, "aria-label": `links of ${rule.rule}` }))));
  const titles = [["Rule", ""], ["Links", "number"], ["Only link", "number"], ["", ""]].map(([text, kind]) => el("th", { class: kind }, text));
  return card("Rules", el("table", {}, el("thead", {}, el("tr", {}, titles)), el("tbody", {}, rows)), true);
}

/** Show details of a job by their type: numbers as bars, rows as a table, other values by name. */
function more(name, value) {
  if (!says(value)) return null;
  if (name === "rules") return rules(value);
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

/** Return the switch that shows the internal columns of a table. */
function allColumns(table) {
  const box = el("input", { type: "checkbox" });
  box.addEventListener("change", () => table.classList.toggle("all", box.checked));
  return el("label", { class: "quiet" }, box, " all columns");
}

/** Show the rows that a plan changes: their kind and reason, and the values before and after. */
function planned(plan, title, isDone = false) {
  const verbs = isDone ? {} : { inserted: "insert", updated: "update", deleted: "delete", kept: "keep" };
  const cell = (row, name) => (row && row[name] !== undefined ? exact(row[name]) : "NULL");
  const internal = new Set(plan.internal_columns ?? []);
  const values = (example) => {
    const images = [example.kind === "inserted" ? null : example.before, example.kind === "deleted" ? null : example.after];
    const names = [...new Set(images.flatMap((row) => Object.keys(row ?? {})))];
    const isSame = (name) => cell(images[0], name) === cell(images[1], name);
    const isInternal = (name) => (internal.has(name) && !images.some((row) => row?.[name] === true))
      || (example.name && example.kind !== "inserted" && isSame(name));
    return [...names.filter((name) => !isInternal(name)), ...names.filter(isInternal)].map((name) => {
      const [before, after] = images.map((row) => cell(row, name));
      const text = (value) => el("span", {}, `${name} = ${value}`);
      const line = (kind, ...children) => el("div", { class: isInternal(name) ? `${kind} internal` : kind }, children);
      if (!images[0]) return line("gained", text(after));
      if (!images[1]) return line("lost", text(before));
      if (before === after) return line("", text(after));
      return line("", el("span", { class: "lost" }, `${name} = ${before}`), " → ", el("span", { class: "gained" }, after));
    });
  };
  const rows = plan.examples.map((example) => el("tr", {},
    el("td", { class: "nowrap" }, badge({ kind: KINDS[example.kind] ?? "", text: words(verbs[example.kind] ?? example.kind) })),
    el("td", {}, example.name ? el("b", {}, example.name) : null, example.members ? el("div", {}, example.members) : null, values(example)),
    el("td", {}, words(example.reason), example.replaces ? ` (replaces ${example.replaces})` : null, example.detail ? [el("br"), el("span", { class: "quiet" }, example.detail)] : null)));
  const titles = el("tr", {}, ["Change", "Row", "Reason"].map((name) => el("th", {}, name)));
  const table = el("table", { class: "changes" }, el("thead", {}, titles), el("tbody", {}, rows));
  const total = Object.values(plan.kinds).reduce((sum, count) => sum + count, 0);
  const shown = plan.examples.reduce((sum, example) => sum + (example.replaces ? 2 : 1), 0);
  const columns = Object.entries(plan.columns ?? {}).filter(([name]) => !internal.has(name)).map(([name, count]) => `${name} (${plain(count)})`);
  const where = plan.saved ? [" All of them are in ", el("code", {}, plan.saved.uri), `, version ${plain(plan.saved.version)}.`] : null;
  return card(title, el("div", {},
    Object.keys(plan.reasons).length > 1 ? bars(plan.reasons) : null,
    el("p", { class: "quiet" }, `${plain(shown)} of ${plain(total)} ${isDone ? "changed rows" : "rows that would change"}.`, where),
    columns.length ? el("p", {}, `Columns that change: ${columns.join(", ")}`) : null,
    (plan.other_changes ?? []).map((change) => el("p", {}, change)),
    plan.examples.length && internal.size ? allColumns(table) : null,
    plan.examples.length ? table : null), true);
}

/** Return the newest runs of this task, with the failed ones that have no report. */
async function listHistory() {
  const [{ runs }, instances] = await Promise.all([
    listRuns(task.dag_id, task.task_id, { map_index: task.map_index }), listInstances([task], 1).catch(() => []),
  ]);
  const own = instances.filter(({ map_index }) => map_index === task.map_index);
  return Promise.all(joinInstances(runs, own).slice(0, HISTORY).map(readRun));
}

/** Return what the runs before and after a run without a report say of the target. */
function between(runs) {
  const index = runs.findIndex(({ run_id }) => run_id === task.run_id);
  const left = ({ report, failure }) => failure?.version ?? report?.target?.version;
  const met = ({ report, failure }) => failure?.version ?? report?.target?.version_before;
  const before = runs.slice(index + 1).map(left).find(Number.isInteger);
  const after = runs.slice(0, Math.max(index, 0)).reverse().map(met).find(Number.isInteger);
  const targets = new Set(runs.map((run) => targetOf([run])).filter(Boolean));
  if (index < 0 || targets.size > 1 || before === undefined || before !== after) {
    return "It is not known whether the run has written. The next run looks for its commit in the log of the target.";
  }
  return [el("b", {}, `${targetOf(runs)} is untouched`), `: the run before left version ${plain(before)}, and the next run found it.`];
}

/** Return what became of the target of a failed run without a report of its failure. */
function known({ report }, runs) {
  // A run that waited for its approval may have written since.
  if (!report || (report.plan && !report.dry_run)) return between(runs);
  const { dataset, version } = report.target;
  if (!report.changed) return `The run changed no rows of ${dataset}.`;
  return [el("b", {}, `This run has committed ${Number.isInteger(version) ? `version ${plain(version)} of ` : ""}${dataset}`), "."];
}

const targetOf = (runs) => runs.map(({ report, failure }) => report?.target?.dataset ?? failure?.dataset).find(Boolean);

function history(runs) {
  if (runs.length < 2) return null;
  const titles = ["Run", "Result", "Mode", "Version", "Changes"];
  const rows = runs.map((run) => el("tr", {},
    el("td", { class: "nowrap" }, run.run_id === task.run_id
      ? el("b", {}, time(run.timestamp)) : link(taskPath(run), time(run.timestamp), run.run_id)),
    el("td", {}, badge(outcome(run))),
    el("td", { title: run.report?.run_mode_reason }, run.failure ? "" : words(run.report?.run_mode ?? "")),
    el("td", { class: "number" }, plain(run.failure?.version ?? (run.report?.dry_run ? null : run.report?.target?.version))),
    el("td", {}, run.failure ? firstProblem(run) : changes(run, plain))));
  return card("Runs of this task", el("table", {},
    el("thead", {}, el("tr", {}, titles.map((title) => el("th", { class: title === "Version" ? "number" : "" }, title)))),
    el("tbody", {}, rows)), true);
}

async function instanceOf() {
  const path = `dags/${part(task.dag_id)}/dagRuns/${part(task.run_id)}/taskInstances/${part(task.task_id)}`;
  return api(task.map_index >= 0 ? `${path}/${task.map_index}` : path).catch(() => null);
}

function absent(instance) {
  const operator = instance?.operator_name ?? instance?.operator ?? "";
  const state = instance?.state ?? null;
  if (!/merge|scd2|delete_?insert|upsert|joiner|undo/i.test(operator)) {
    return show(el("p", { class: "empty quiet" }, "This task does not run a merge, so it has no merge report."));
  }
  if (state === "failed" || state === "up_for_retry") return showFailure({ instance });
  if (OVER.has(state)) {
    return show(el("div", { class: "head" }, el("h1", {}, "Merge report"), badge(outcome({ instance }))),
      el("p", { class: "under" }, "This run of the task has no report."));
  }
  show(el("div", { class: "head" }, el("h1", {}, "Merge report"), badge({ kind: "", text: words(state ?? "not started") })),
    el("p", { class: "under" }, "The report appears here when the merge is complete."));
  window.setTimeout(start, 5000);
}

/** Show why a run failed, what it did not write, and the changes that were stopped. */
async function showFailure(run, plan = null) {
  const runs = await listHistory().catch(() => []);
  const title = el("h1", {}, targetOf([run, ...runs]) ?? "Merge report");
  const cards = el("div", { class: "cards" },
    failed(run, known(run, runs)),
    plan ? planned(plan, "Changes that were stopped") : null,
    run.failure?.expectations?.length ? card("Expectations that stopped the run", expected(run.failure.expectations), true) : null,
    history(runs));
  show(head(run, title), cards);
}

const PLANS = { "Waits for approval": "Changes that wait for approval", "Not approved": "Changes that were not approved" };

/** Show a report: its sentence, then rules and other details, runs and rows; internals are folded. */
async function showReport(run, plan) {
  const { report } = run;
  const { text } = outcome(run);
  const details = Object.entries(report.details ?? {}).filter(([name]) => name !== "rules");
  const described = COUNTS[report.job] ?? {};
  const rows = Object.fromEntries(Object.entries(report.rows ?? {}).filter(([, count]) => count !== null));
  const isPlanned = report.dry_run || Boolean(report.plan);
  const question = text === "Waits for approval" ? el("p", {}, link(taskPath(task, "/required_actions"), "Approve or reject the changes")) : null;
  const past = await listHistory().then(history).catch(() => null);
  const sourceCount = Object.keys(report.sources ?? {}).length;
  const cards = el("div", { class: "cards" },
    report.warnings?.length ? card("Warnings", notes(report.warnings), true) : null,
    report.expectations?.length ? card("Expectations", expected(report.expectations), true) : null,
    more("rules", report.details?.rules),
    plan ? planned(plan, report.dry_run ? "Planned changes" : PLANS[text] ?? "Approved changes", !isPlanned) : null,
    details.map(([name, value]) => more(name, value)),
    past,
    sourceCount ? folded(`Sources (${plain(sourceCount)})`, sources(report.sources)) : null,
    folded(isPlanned ? "All counts of the plan" : "All counts", [isCheck(report) ? null : tiles(rows, ROWS), counts(report, described)]),
    folded("Time and internals", [
      isObject(report.seconds) ? bars(report.seconds, " s") : null,
      report.truncated?.length
        ? el("p", { class: "quiet" }, `Too long for an XCom: ${report.truncated.join(", ")}. The task log contains the full report.`) : null]));
  show(head(run), sentence(run), question, cards);
}

async function start() {
  if (!params.dag_id || !params.run_id || !params.task_id) {
    return show(el("p", { class: "empty quiet" }, "Open this page from a task instance."));
  }
  try {
    const [report, failure, instance, plan] = await Promise.all([
      xcomOf(task, REPORT), xcomOf(task, FAILURE), instanceOf(), xcomOf(task, "merge_plan"),
    ]);
    const run = { ...task, report, failure, instance };
    if (!report && !failure) return absent(instance);
    const isFailed = failure || ["failed", "up_for_retry"].includes(instance?.state);
    await (isFailed ? showFailure(run, plan) : showReport(run, plan));
  } catch (error) {
    trouble(error);
  }
}

start();
