// Functions of both pages: elements, links, Airflow's colours and its public API.

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const times = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Create an element. Children are elements or text; text is never parsed as HTML. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
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

export function time(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? "–" : times.format(date);
}

/** Return the result of a run from its report. */
export function outcome(report) {
  if (report.plan && !report.dry_run) return { kind: "warn", text: "Waits for approval" };
  if (report.dry_run) return { kind: "warn", text: "Dry run" };
  return report.changed ? { kind: "good", text: "Changed" } : { kind: "", text: "Nothing changed" };
}

export function badge({ kind, text }) {
  return el("span", { class: `badge ${kind}` }, text);
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** Read from Airflow's public API with the session of the user; the API has the same base address as the pages. */
export async function api(path, query = {}) {
  const url = new URL(`../api/v2/${path}`, window.location.href);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const response = await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" } });
  if (!response.ok) throw Object.assign(new Error(`${response.status} ${response.statusText}`), { status: response.status });
  return response.json();
}

export const part = encodeURIComponent;

/** Return the report of one task instance, or null if it has none. */
export async function reportOf(task) {
  return xcomOf(task, "merge_report");
}

/** Return an object that a task instance has pushed, or null if it has not. */
export async function xcomOf({ dag_id, run_id, task_id, map_index }, key) {
  const path = `dags/${part(dag_id)}/dagRuns/${part(run_id)}/taskInstances/${part(task_id)}/xcomEntries/${key}`;
  try {
    const { value } = await api(path, { map_index: map_index ?? -1 });
    const content = typeof value === "string" ? JSON.parse(value) : value;
    return isObject(content) ? content : null;
  } catch (error) {
    if (error.status === 404 || error instanceof SyntaxError) return null;
    throw error;
  }
}

/** Return the XCom entries of reports, newest first; "~" stands for all. */
export async function reports(dag = "~", task = "~", query = {}) {
  const name = (id) => (id === "~" ? id : part(id));
  const path = `dags/${name(dag)}/dagRuns/~/taskInstances/${name(task)}/xcomEntries`;
  const response = await api(path, { xcom_key: "merge_report", order_by: "-timestamp", ...query });
  return response.xcom_entries;
}

/** Read many reports, six at a time. */
export async function withReports(entries) {
  const runs = entries.map((entry) => ({ ...entry }));
  const queue = [...runs];
  const reader = async () => {
    for (let entry = queue.shift(); entry; entry = queue.shift()) {
      entry.report = await reportOf(entry).catch(() => null);
    }
  };
  await Promise.all(Array.from({ length: 6 }, reader));
  return runs.filter((entry) => entry.report);
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

export function taskPath({ dag_id, run_id, task_id, map_index }) {
  const mapped = map_index >= 0 ? `/mapped/${map_index}` : "";
  return `dags/${part(dag_id)}/runs/${part(run_id)}/tasks/${part(task_id)}${mapped}/plugin/merge-report`;
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
