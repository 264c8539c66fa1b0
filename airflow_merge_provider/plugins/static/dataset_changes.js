// The rows that differ between two versions of a dataset.

import { ask, badge, el, exact, field, plain, words } from "./page.js";

const KINDS = { inserted: "good", updated: "warn", deleted: "bad" };

/** Return the values of a row before and after a change, one line for each column that differs. */
export function values(before, after) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const text = (image, name) => (image && image[name] !== undefined ? exact(image[name]) : "NULL");
  return names.map((name) => {
    if (!before || !after) {
      return el("div", { class: after ? "gained" : "lost" }, `${name} = ${text(after ?? before, name)}`);
    }
    const images = [text(before, name), text(after, name)];
    if (images[0] === images[1]) return el("div", { class: "quiet" }, `${name} = ${images[1]}`);
    return el("div", {}, el("span", { class: "lost" }, `${name} = ${images[0]}`), " → ", el("span", { class: "gained" }, images[1]));
  });
}

function table({ rows }) {
  const lines = rows.map(({ kind, reason, before, after }) => el("tr", {},
    el("td", { class: "nowrap" }, badge({ kind: KINDS[kind], text: words(kind) })),
    el("td", {}, values(before, after)), el("td", {}, reason)));
  return el("table", { class: "changes" },
    el("thead", {}, el("tr", {}, ["Change", "Row", "Reason"].map((name) => el("th", {}, name)))), el("tbody", {}, lines));
}

export async function showChanges({ dataset, show }, options = {}) {
  const newest = dataset.version ?? 0;
  const number = (value) => el("input", { type: "number", min: 0, max: newest, value, required: "" });
  const controls = {
    first: number(options.first ?? Math.max(newest - 1, 0)),
    last: number(options.last ?? newest),
    kind: el("select", {}, [["", "all"], ...Object.keys(KINDS).map((name) => [name, name])].map(([value, text]) => el("option", { value }, text))),
    key: el("input", { type: "search", maxlength: 2000 }),
    all_columns: el("input", { type: "checkbox" }),
  };
  const result = el("div", { "aria-live": "polite" });
  const form = el("form", { class: "controls" },
    field("between version", controls.first), field("and", controls.last), field("kind", controls.kind), field("key contains", controls.key),
    field("all columns", controls.all_columns), el("button", {}, "Show"));
  const load = async (offset = 0) => {
    result.replaceChildren(el("p", { class: "quiet" }, "Comparing …"));
    const { first, last, kind, key, all_columns } = controls;
    const query = { first: first.value, last: last.value, kind: kind.value || null, key: key.value || null, all_columns: all_columns.checked, offset };
    try {
      const page = await ask(`/${dataset.asset_id}/changes`, query);
      const counts = Object.entries(page.kinds).filter(([, count]) => count).map(([name, count]) => `${plain(count)} ${name}`).join(", ");
      const next = el("button", { type: "button" }, "Next rows");
      next.addEventListener("click", () => load(page.next));
      result.replaceChildren(
        el("p", { class: "lead" }, counts ? `${counts}.` : "No row differs."),
        page.rows.length ? el("section", { class: "card" }, table(page)) : "",
        page.matches ? el("p", { class: "quiet" }, `Rows ${plain(offset + 1)} to ${plain(offset + page.rows.length)} of ${plain(page.matches)}. `, page.next ? next : null) : "");
    } catch (error) {
      result.replaceChildren(el("p", { class: "error" }, error.detail ?? error.message));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); load(); });
  show(form, result);
  await load();
}
