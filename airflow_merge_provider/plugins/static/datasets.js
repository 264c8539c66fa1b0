// The page of every dataset that merges in this Airflow write, with its last run and previous runs.

import { badge, el, link, outcome, plain, reports, show, taskPath, time, trouble, withReports } from "./page.js";

const SHOWN = 12;
const READ = 100;

function byTarget(runs) {
  const runsByTarget = new Map();
  for (const run of runs) {
    const name = run.report.target?.uri ?? run.report.target?.dataset;
    if (!name) continue;
    if (!runsByTarget.has(name)) runsByTarget.set(name, []);
    runsByTarget.get(name).push(run);
  }
  return [...runsByTarget.values()];
}

function dots(runs) {
  return el("div", { class: "dots" }, runs.slice(0, SHOWN).reverse().map((run) => {
    const { kind, text } = outcome(run.report);
    return link(taskPath(run), el("div", { class: `dot ${kind}` }), `${text}, ${time(run.timestamp)}`);
  }));
}

function counted(rows = {}) {
  const entries = Object.entries(rows).filter(([, value]) => value !== null);
  return entries.map(([name, value]) => `${plain(value)} ${name}`).join(" · ");
}

function row(runs) {
  const [last] = runs;
  const { target, rows } = last.report;
  return el("tr", {},
    el("td", { class: "nowrap" }, link(taskPath(last), el("b", {}, target.dataset ?? target.uri)), el("br"), el("code", { class: "quiet" }, target.uri)),
    el("td", {}, badge(outcome(last.report))),
    el("td", { class: "number" }, plain(target.version)),
    el("td", { class: "nowrap" }, time(last.timestamp), el("br"), el("span", { class: "quiet" }, `${last.dag_display_name} · ${last.task_display_name}`)),
    el("td", { class: "quiet" }, counted(rows)),
    el("td", {}, dots(runs)));
}

async function start() {
  try {
    const entries = await reports("~", "~", { limit: READ });
    const targets = byTarget(await withReports(entries));
    const title = el("div", { class: "head" }, el("h1", {}, "Merged datasets"));
    if (!targets.length) {
      return show(title, el("p", { class: "empty quiet" }, "No merge has run yet. This page lists every dataset that a merge writes."));
    }
    const names = ["Dataset", "Result", "Version", "Last run", "Rows", "Runs"];
    const titles = names.map((name) => el("th", { class: name === "Version" ? "number" : "" }, name));
    show(title,
      el("p", { class: "under" }, `${plain(targets.length)} ${targets.length === 1 ? "dataset" : "datasets"}, from the last ${plain(entries.length)} runs`),
      el("section", { class: "card" }, el("table", {}, el("thead", {}, el("tr", {}, titles)), el("tbody", {}, targets.map(row)))));
  } catch (error) {
    trouble(error);
  }
}

start();
