// A search by key: what made a row, a golden record, a version of a history or a merged file, and its timeline.

import { ask, badge, el, exact, field, plain, time } from "./page.js";
import { drawMembers, drawVersions } from "./plot.js";
import { values } from "./dataset_changes.js";

function card(title, ...content) {
  return el("section", { class: "card wide" }, el("h2", {}, title), content);
}

function table(titles, lines) {
  return el("table", { class: "changes" }, el("thead", {}, el("tr", {}, titles.map((title) => el("th", {}, title)))),
    el("tbody", {}, lines.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))))));
}

const text = (row) => Object.entries(row ?? {}).map(([name, value]) => `${name} = ${exact(value)}`).join(", ");
const byCommit = ({ version, time: at, dag_id, task_id, run_id }) =>
  `version ${plain(version)}, ${time(at)}${run_id ? `, ${[dag_id, task_id, run_id].filter(Boolean).join(" · ")}` : ""}`;

function golden({ output_id, status, members, links, replaced_by }) {
  const state = { live: "good", deleted: "bad", replaced: "warn" }[status];
  return card(`Golden record ${output_id}`, el("p", {}, badge({ kind: state, text: status }), replaced_by.length ? ` by ${replaced_by.join(", ")}` : null),
    members.length ? el("div", { class: "drawing" }, drawMembers(members, links)) : null);
}

/** Return the values of each member of a golden record, side by side; internal columns begin with _ or $. */
function memberRows(inputs) {
  const names = [...new Set(inputs.flatMap(({ rows }) => Object.keys(rows[0] ?? {})))].filter((name) => !/^[_$]/.test(name));
  if (!names.length && inputs.every(({ missing }) => !missing)) return null;
  const lines = names.map((name) => [name, ...inputs.map(({ rows }) => (rows[0] && name in rows[0] ? exact(rows[0][name]) : ""))]);
  const missing = inputs.filter((one) => one.missing).map((one) => el("p", { class: "quiet" }, `${one.input}: ${one.missing}`));
  const found = inputs.filter(({ rows }) => rows.length);
  return card("Where the values come from, as the newest run has read them",
    found.length ? el("div", { class: "drawing" }, table(["Column", ...inputs.map(({ input }) => input)], lines)) : null, missing);
}

function engine({ row, columns, records }) {
  const winners = Object.entries(columns).map(([name, { value, why, records: numbers }]) =>
    [name, exact(value), why, numbers.map(plain).join(", ")]);
  const read = records.map(({ number, source, version, kind, did }) => [plain(number), `${source} version ${plain(version)}`, kind, did]);
  return [card(row ? "Winner of each column" : "The key has no row", table(["Column", "Value", "Why", "Records"], winners)),
    card("Records, oldest first", table(["Record", "Source", "Row kind", "What it did"], read))];
}

function join({ commit, rows, reasons, missing, inputs }) {
  const lines = inputs.map(({ input, dataset, version, required, rows: found, missing: why }) =>
    [`${input}${required ? " (required)" : ""}`, `${dataset} version ${plain(version)}`, why ?? (found.length ? found.map((line) => el("div", {}, text(line))) : "no row")]);
  return [card(rows?.length ? "Joined row" : "No joined row", (rows ?? []).map((line) => el("p", {}, text(line))),
    reasons.map((reason) => el("p", { class: "error" }, reason)), missing ? el("p", { class: "quiet" }, missing) : null, el("p", { class: "quiet" }, byCommit(commit))),
  card("Rows of the inputs", table(["Input", "Dataset", "Rows of the key"], lines))];
}

function file({ events, waiting }) {
  const lines = events.map(({ at, outcome, bin, reason, uri, sources }) =>
    [time(at / 1000), outcome, bin ?? "", reason ?? "", uri ?? "", sources.map((source) => el("div", {}, source.uri))]);
  return [events.length ? card("What runs did with the file", table(["Time", "Outcome", "Bin", "Reason", "Output", "Sources"], lines)) : null,
    waiting.length ? card("Waits in a bin", table(["File", "Bin", "Files of the bin"], waiting.map(({ source, bin }) =>
      [source.uri, bin?.id ?? "the next run", bin ? plain(bin.sources.length) : ""]))) : null];
}

function versions({ versions: list }) {
  const lines = list.map(({ valid_from, valid_to, active, stored, values: row, events }) =>
    [exact(valid_from), active ? "now" : exact(valid_to), stored ? text(row) : `removed: ${text(row)}`,
      events.map(({ kind, detail, repair, commit }) => el("div", {}, `${kind} ${detail}${repair ? " (repair)" : ""} · ${byCommit(commit)}`))]);
  return card("Versions of the key", drawVersions(list), table(["Valid from", "Valid to", "Values", "What loads did"], lines));
}

function sourceRows({ source }) {
  if (!source) return null;
  const { source: name, version, rows, reason, missing } = source;
  const lines = rows.map(({ values: row, effect }) => [effect, text(row)]);
  return card("Source rows of the last change", missing ? el("p", { class: "quiet" }, missing) : el("p", { class: "quiet" }, `${name} version ${plain(version)}`),
    lines.length ? table(["Effect", "Row"], lines) : null, reason ? el("p", {}, reason) : null);
}

/** Return the cards of an explanation: its keys tell which capability has written the target. */
export function explain(answer) {
  if (answer.problem) return card("Explanation", el("p", { class: "error" }, answer.problem));
  if (answer.output_id !== undefined) return [golden(answer), memberRows(answer.inputs ?? [])];
  if (answer.entities) return [answer.entities.map(({ output }) => golden(output)), memberRows(answer.inputs ?? [])];
  if (answer.inputs) return join(answer);
  if (answer.records) return engine(answer);
  if (answer.versions) return versions(answer);
  if (answer.events) return file(answer);
  return sourceRows(answer);
}

function timeline(answer, hidden) {
  if (!answer) return null;
  if (answer.problem) return card("Timeline", el("p", { class: "error" }, answer.problem));
  const visible = (row) => row && Object.fromEntries(Object.entries(row).filter(([name, value]) => value === true || !hidden.has(name)));
  const lines = [...answer.states].reverse().map(({ commit, kind, removed, added, events }) => [
    byCommit(commit), kind,
    events.length
      ? events.map(({ valid_from, kind: event, detail }) => el("div", {}, `from ${exact(valid_from)}: ${event} ${detail}`))
      : removed.length === 1 && added.length === 1 ? changedOnly(visible(removed[0]), visible(added[0]))
        : [...removed.map((row) => values(visible(row), null)), ...added.map((row) => values(null, visible(row)))]]);
  return card("Timeline, newest first", table(["Commit", "Change", "Rows"], lines),
    answer.missing ? el("p", { class: "quiet" }, `Older states are unknown: ${answer.missing}`) : null);
}

/** Return the columns of a row that differ, before and after. */
function changedOnly(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => exact(before[name]) !== exact(after[name]));
  const pick = (row) => Object.fromEntries(names.map((name) => [name, row[name] ?? null]));
  return values(pick(before), pick(after));
}

export async function showFind({ dataset, show }, options = {}) {
  const key = el("input", { type: "search", required: "", maxlength: 2000, value: options.key ?? "", size: 40 });
  const result = el("div", { "aria-live": "polite", class: "cards" });
  const form = el("form", { class: "controls" }, field("key, member, stable ID or file", key), el("button", {}, "Find"));
  const load = async () => {
    result.replaceChildren(el("p", { class: "quiet" }, "Reading …"));
    try {
      const answer = await ask(`/${dataset.asset_id}/find`, { key: key.value });
      const hidden = new Set(answer.internal_columns ?? []);
      result.replaceChildren(...[explain(answer.explanation), timeline(answer.timeline, hidden)].flat(Infinity).filter(Boolean));
    } catch (error) {
      result.replaceChildren(el("p", { class: "error" }, error.detail ?? error.message));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); load(); });
  show(form, el("p", { class: "quiet" }, "A key of several columns is a JSON object, such as ", el("code", {}, "{\"id\": 1, \"country\": \"NO\"}"), "."), result);
  key.focus();
  if (options.key) await load();
}
