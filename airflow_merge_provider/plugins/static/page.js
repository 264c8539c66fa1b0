// Functions of all pages: elements, links, Airflow's colours and its public API.

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const times = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Create an element. Children are elements or text; text is never parsed as HTML. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Create an element of a drawing; an attribute is never a style, which the content security policy forbids. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function show(...children) {
  document.getElementById("page").replaceChildren(...children.flat().filter(Boolean));
}

export function words(name) {
  const text = String(name).replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function plain(value) {
  if (typeof value === "number") return numbers.format(value);
  if (value === null || value === undefined) return "–";
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** Return a value of a row as text: all digits of a number, which is no count. */
export function exact(value) {
  return typeof value === "number" ? (Object.is(value, -0) ? "-0" : String(value)) : plain(value);
}

export function time(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? "–" : times.format(date);
}

export function badge({ kind, text }) {
  return el("span", { class: `badge ${kind}` }, text);
}

/** Return a labelled control of a form. */
export function field(text, control) {
  return el("label", { class: "field" }, el("span", { class: "quiet" }, text), control);
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Read from Airflow's public API with the session of the user; the API has the same base address as the pages. */
export async function api(path, query = {}, content = null) {
  return request(new URL(`../api/v2/${path}`, window.location.href), query, content);
}

/** Read from the API of the dataset page; an error has the text of its answer. */
export async function ask(path, query = {}) {
  return request(new URL(`api/datasets${path}`, window.location.href), query);
}

async function request(url, query, content = null) {
  for (const [name, value] of Object.entries(query)) {
    for (const item of [value].flat()) if (item !== null && item !== undefined) url.searchParams.append(name, item);
  }
  const headers = { Accept: "application/json" };
  const post = content && { method: "POST", body: JSON.stringify(content) };
  if (content) headers["Content-Type"] = "application/json";
  const response = await fetch(url, { credentials: "same-origin", headers, ...post });
  if (!response.ok) {
    const detail = await response.json().then((answer) => answer.detail, () => null);
    const error = new Error(`${response.status} ${response.statusText}`);
    throw Object.assign(error, { status: response.status, detail: typeof detail === "string" ? detail : null });
  }
  return JSON.parse(await response.text(), keepDigits);
}

/** Keep an integer with more digits than a number of JavaScript holds as text, where the browser permits it. */
function keepDigits(_, value, context) {
  const isLong = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "");
  return isLong ? context.source : value;
}

export const part = encodeURIComponent;

/** Return an object that a task instance has pushed, or null if it has not. */
export async function xcomOf({ dag_id, run_id, task_id, map_index }, key) {
  const path = `dags/${part(dag_id)}/dagRuns/${part(run_id)}/taskInstances/${part(task_id)}/xcomEntries/${key}`;
  try {
    const { value } = await api(path, { map_index: map_index ?? -1 });
    const content = typeof value === "string" ? JSON.parse(value, keepDigits) : value;
    return isObject(content) ? content : null;
  } catch (error) {
    if (error.status === 404 || error instanceof SyntaxError) return null;
    throw error;
  }
}

const PAGE = 100;
const PAGES = 20;
export const REPORT = "merge_report";
export const FAILURE = "merge_failure";

/** Read pages of a list until it ends, at most twenty; `isComplete` says whether it did. */
export async function readPages(read) {
  const items = [];
  for (let page = 0; page < PAGES; page += 1) {
    const rows = await read(PAGE, page * PAGE);
    items.push(...rows);
    if (rows.length < PAGE) return { items, isComplete: true };
  }
  return { items, isComplete: false };
}

export const runKey = ({ dag_id, run_id, dag_run_id, task_id, map_index }) =>
  JSON.stringify([dag_id, run_id ?? dag_run_id, task_id, map_index ?? -1]);
export const taskKey = ({ dag_id, task_id, map_index }) => JSON.stringify([dag_id, task_id, map_index ?? -1]);

/** Return the runs with a report or a report of their failure, newest first, without either; "~" stands for all. */
export async function listRuns(dag = "~", task = "~", query = {}) {
  const name = (id) => (id === "~" ? id : part(id));
  const path = `dags/${name(dag)}/dagRuns/~/taskInstances/${name(task)}/xcomEntries`;
  const read = (key) => readPages(async (limit, offset) =>
    (await api(path, { xcom_key: key, order_by: "-timestamp", limit, offset, ...query })).xcom_entries);
  const lists = await Promise.all([REPORT, FAILURE].map(read));
  const runs = new Map();
  for (const [index, { items }] of lists.entries()) {
    for (const { key, ...entry } of items) {
      const run = runs.get(runKey(entry)) ?? { ...entry, keys: [] };
      run.keys.push([REPORT, FAILURE][index]);
      if (entry.timestamp > run.timestamp) run.timestamp = entry.timestamp;
      runs.set(runKey(entry), run);
    }
  }
  return { runs: sortNewest([...runs.values()]), isComplete: lists.every(({ isComplete }) => isComplete) };
}

export function sortNewest(runs) {
  return runs.sort((a, b) => new Date(b.timestamp) - new Date(a.timestamp));
}

let reading = 0;
const waiting = [];

/** Run a function when fewer than six others do. */
async function limited(read) {
  if (reading >= 6) await new Promise((resolve) => { waiting.push(resolve); });
  reading += 1;
  try {
    return await read();
  } finally {
    reading -= 1;
    waiting.shift()?.();
  }
}

/** Add the report and the report of a failure to a run, once. */
export async function readRun(run) {
  const names = { [REPORT]: "report", [FAILURE]: "failure" };
  await Promise.all((run.keys ?? []).filter((key) => !(names[key] in run)).map(async (key) => {
    run[names[key]] = await limited(() => xcomOf(run, key).catch(() => null));
  }));
  return run;
}

/** Return the newest task instances of tasks, with their states. */
export async function listInstances(tasks, pages = PAGES) {
  const dag_ids = [...new Set(tasks.map(({ dag_id }) => dag_id))];
  const task_ids = [...new Set(tasks.map(({ task_id }) => task_id))];
  if (!dag_ids.length) return [];
  const names = new Set(tasks.map(({ dag_id, task_id }) => JSON.stringify([dag_id, task_id])));
  let count = 0;
  const { items } = await readPages(async (page_limit, page_offset) => {
    count += 1;
    if (count > pages) return [];
    const content = { dag_ids, task_ids, order_by: "-start_date", page_limit, page_offset };
    return (await api("dags/~/dagRuns/~/taskInstances/list", {}, content)).task_instances;
  });
  return items.filter(({ dag_id, task_id }) => names.has(JSON.stringify([dag_id, task_id])));
}

/** Return runs together with the runs that ended without a report; every run has its task instance, if it is known. */
export function joinInstances(runs, instances) {
  const known = new Map(runs.map((run) => [runKey(run), run]));
  const more = [];
  for (const instance of instances) {
    const run = known.get(runKey(instance));
    if (run) run.instance = instance;
    else if (["failed", "up_for_retry", "upstream_failed"].includes(instance.state)) {
      const timestamp = instance.end_date ?? instance.start_date ?? instance.run_after;
      more.push({ ...instance, run_id: instance.run_id ?? instance.dag_run_id, timestamp, keys: [], instance });
    }
  }
  return sortNewest([...runs, ...more]);
}

/** Create a link into Airflow. A frame cannot navigate its parent page, so the click sends an event to it. */
export function link(path, text, title) {
  const url = new URL(`../${path}`, window.location.href);
  const anchor = el("a", { href: url.href, title }, text);
  anchor.addEventListener("click", (event) => {
    if (window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    window.parent.history.pushState({}, "", url.href);
    window.parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
  });
  return anchor;
}

/** Return the address of the page of the dataset that a task writes; it is shown in the same frame. */
export function datasetPath({ dag_id, task_id }) {
  return `dataset.html?${new URLSearchParams({ dag_id, task_id })}`;
}

/** Create a link to a page outside of Airflow, which opens in a new tab: the frame itself may open none. */
export function outerLink(address, text) {
  // An address of another kind could be a script.
  if (!/^https?:\/\//i.test(address)) return el("span", {}, text);
  const anchor = el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, text);
  anchor.addEventListener("click", (event) => {
    if (window.parent === window) return;
    event.preventDefault();
    const outer = window.parent.document.createElement("a");
    Object.assign(outer, { href: address, target: "_blank", rel: "noopener noreferrer" });
    outer.click();
  });
  return anchor;
}

/** Return the path of a tab of a task instance; an empty tab is the log. */
export function taskPath({ dag_id, run_id, task_id, map_index }, tab = "/plugin/merge-report") {
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  return `dags/${part(dag_id)}/runs/${part(run_id)}/tasks/${part(task_id)}${mapped}${tab}`;
}

export function trouble(error) {
  const text = error.status === 403 || error.status === 401
    ? "You do not have permission to read the results of this task."
    : `The request to the Airflow API failed: ${error.message}`;
  show(el("p", { class: "empty" }, text));
}

/** Use Airflow's light or dark colours, also after a switch; outside a frame, use the system's. */
function followColours() {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let outer = null;
  try {
    outer = window.parent === window ? null : window.parent.document.documentElement;
  } catch { /* the parent page has another origin, so its colours cannot be read */ }
  const paint = () => {
    root.classList.toggle("dark", outer ? outer.classList.contains("dark") : system.matches);
    const background = outer ? window.parent.getComputedStyle(outer.ownerDocument.body).backgroundColor : "";
    if (background.startsWith("rgb(")) root.style.setProperty("--page", background);
  };
  paint();
  if (outer) new MutationObserver(paint).observe(outer, { attributes: true, attributeFilter: ["class"] });
  else system.addEventListener("change", paint);
}

followColours();
