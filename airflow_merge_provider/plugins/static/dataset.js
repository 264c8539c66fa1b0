// The page of one dataset: its runs, the rows that they changed, a search by key, what waits, and how to read it.

import { ask, el, link, part, plain, show, words } from "./page.js";
import { showRuns } from "./dataset_runs.js";
import { showChanges } from "./dataset_changes.js";
import { showFind } from "./dataset_find.js";
import { showAbout, showUndo, showWaiting } from "./dataset_about.js";

const params = Object.fromEntries(new URLSearchParams(window.location.search));
const TABS = { runs: showRuns, changes: showChanges, find: showFind, waiting: showWaiting, about: showAbout, undo: showUndo };

/** Return the reason why there is no answer, as a paragraph. */
function refusal(error) {
  if (error.status === 401 || error.status === 403) {
    return el("p", { class: "empty" }, "You do not have permission to read this dataset.");
  }
  return el("p", { class: "error" }, error.detail ?? `The request failed: ${error.message}`);
}

/** Return the dataset that the address names: by its asset, or by a task that writes it. */
async function findDataset() {
  const { asset_id, dag_id, task_id } = params;
  if (!asset_id && (!dag_id || !task_id)) return null;
  const [dataset] = await ask("", { asset_id, dag_id, task_id });
  return dataset ?? null;
}

/** Create the tabs; arrow keys, Home and End move between them. */
function createTabs(dataset, panel) {
  // Files of a merge record have no versions to compare.
  const names = Object.keys(TABS).filter((name) => name !== "changes" || dataset.is_table !== false);
  const buttons = names.map((name) => el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel" }, words(name)));
  const open = async (name, options = {}) => {
    buttons.forEach((button, index) => {
      button.setAttribute("aria-selected", String(names[index] === name));
      button.tabIndex = names[index] === name ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    window.history.replaceState(window.history.state, "", `#${name}`);
    const content = el("div", {}, el("p", { class: "quiet" }, "Loading …"));
    panel.replaceChildren(content);
    await TABS[name]({ dataset, open, show: (...parts) => content.replaceChildren(...parts.flat().filter(Boolean)) }, options)
      .catch((error) => content.replaceChildren(refusal(error)));
  };
  buttons.forEach((button, index) => {
    button.addEventListener("click", () => open(names[index]));
    button.addEventListener("keydown", ({ key }) => {
      const next = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: names.length - 1 }[key];
      if (next === undefined) return;
      const target = (next + names.length) % names.length;
      buttons[target].focus();
      open(names[target]);
    });
  });
  return { bar: el("div", { role: "tablist", class: "tabs" }, buttons), open };
}

function head(dataset) {
  const facts = [words(dataset.owner ?? "dataset")];
  if (Number.isInteger(dataset.version)) facts.push(`version ${plain(dataset.version)}`);
  if (Number.isInteger(dataset.rows)) facts.push(`${plain(dataset.rows)} rows`);
  const tasks = (dataset.tasks ?? []).map(({ dag_id, task_id }) => [" · ", link(`dags/${part(dag_id)}`, `${dag_id} · ${task_id}`)]);
  return [
    el("p", { class: "quiet" }, el("a", { href: "datasets.html" }, "Merged datasets")),
    el("div", { class: "head" }, el("h1", {}, dataset.name ?? "Dataset")),
    el("p", { class: "under" }, facts.join(" · "), tasks, dataset.uri ? [el("br"), el("code", {}, dataset.uri)] : null),
  ];
}

async function start() {
  try {
    const found = await findDataset();
    if (!found) {
      const text = "There is no such dataset, or you may not read it. The target of a task is unknown here if it is a template.";
      return show(el("p", { class: "empty quiet" }, text));
    }
    const panel = el("div", { role: "tabpanel", id: "panel", tabindex: "0" });
    // The table may not exist yet: the runs of its tasks are shown all the same.
    const about = await ask(`/${found.asset_id}`).catch((error) => ({ ...found, error }));
    if ([401, 403, 404].includes(about.error?.status)) return show(refusal(about.error));
    const dataset = { ...found, ...about };
    const { bar, open } = createTabs(dataset, panel);
    show(head(dataset), bar, panel);
    const chosen = window.location.hash.slice(1);
    document.title = dataset.name ?? document.title;
    await open(chosen in TABS ? chosen : "runs", params);
  } catch (error) {
    show(refusal(error));
  }
}

if (document.getElementById("page")) start();
