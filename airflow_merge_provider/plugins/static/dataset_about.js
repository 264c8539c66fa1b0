// What a dataset is and how to read it, what waits, and how to undo its newest run.

import { ask, el, exact, link, plain, taskPath, time, words } from "./page.js";
import { listApprovals } from "./dataset_runs.js";
import { changes } from "./status.js";

function card(title, ...content) {
  return el("section", { class: "card wide" }, el("h2", {}, title), content);
}

/** Return code with a button that copies it; without access to the clipboard, the button selects it. */
export function copied(text) {
  const code = el("pre", {}, el("code", {}, text));
  const button = el("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      window.getSelection().selectAllChildren(code);
    }
  });
  return el("div", { class: "copied" }, code, button);
}

/** Return how to read a table with a tool; the text of a location is quoted as the tool quotes texts. */
function readers({ uri }) {
  const python = JSON.stringify(uri);
  const query = [
    "import pyarrow", "from deltalake import DeltaTable, QueryBuilder", "", `table = DeltaTable(${python})`,
    'rows = QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()',
  ];
  return {
    pandas: [...query, "frame = pyarrow.table(rows).to_pandas()"].join("\n"),
    DuckDB: ["import duckdb", ...query, "t = pyarrow.table(rows)", 'duckdb.sql("SELECT count(*) FROM t")'].join("\n"),
    Spark: `spark.read.format("delta").load(${python})`,
  };
}

export async function showAbout({ dataset, show }) {
  if (dataset.error) throw dataset.error;
  const facts = {
    Location: el("code", {}, dataset.location),
    Version: plain(dataset.version),
    Rows: plain(dataset.rows),
    Files: `${plain(dataset.files)} (${plain(dataset.bytes)} bytes)`,
    Populated: dataset.populated ? "yes" : "no",
  };
  const columns = dataset.columns.map(({ name, type, nullable, is_key, is_internal, comment }) => el("tr", {},
    el("td", {}, el("code", {}, name)), el("td", {}, el("code", {}, type)),
    el("td", {}, [is_key ? "key" : null, is_internal ? "internal" : null, nullable ? null : "not NULL", comment].filter(Boolean).join(", "))));
  const sources = dataset.sources.map(({ uri, version, asset_id }) => el("tr", {},
    el("td", {}, asset_id === null ? el("code", {}, uri) : el("a", { href: `dataset.html?asset_id=${asset_id}` }, uri)), el("td", { class: "number" }, plain(version))));
  const lines = (rows) => el("table", {}, el("tbody", {}, rows));
  const named = (values) => lines(Object.entries(values).map(([name, value]) => el("tr", {}, el("td", { class: "quiet nowrap" }, words(name)), el("td", {}, value))));
  show(el("div", { class: "cards" },
    dataset.is_table ? card("Table", named(facts)) : null,
    sources.length ? card("Sources of the newest run, with their versions", lines(sources)) : null,
    columns.length ? card("Columns", lines(columns)) : null,
    dataset.config ? card("Configuration of the newest run, as its commit has it", el("pre", {}, JSON.stringify(dataset.config, null, 2))) : null,
    dataset.is_table ? card("Read it", Object.entries(readers({ uri: dataset.location })).map(([name, text]) => [el("h2", {}, name), copied(text)])) : null));
}

export async function showWaiting({ dataset, show }, { offset = 0 } = {}) {
  const [page, approvals] = await Promise.all([ask(`/${dataset.asset_id}/waiting`, { offset }), listApprovals(dataset)]);
  const { bins, bin_count, rejected } = page;
  const approvalLines = approvals.map((run) => el("tr", {},
    el("td", { class: "nowrap" }, link(taskPath(run), time(run.timestamp), run.run_id)), el("td", {}, changes(run, plain))));
  const binLines = bins.map(({ bin, group, since, files, expected_files, records, bytes }) => el("tr", {},
    [bin, group ?? "", time(since), expected_files ? `${plain(files)} of ${plain(expected_files)} files` : `${plain(files)} files`, `${plain(records)} records`, `${plain(bytes)} bytes`]
      .map((cell) => el("td", {}, cell))));
  const names = [...new Set((rejected?.rows ?? []).flatMap((row) => Object.keys(row)))];
  const next = el("button", { type: "button" }, "Next rows");
  next.addEventListener("click", () => showWaiting({ dataset, show }, { offset: rejected.next }));
  show(el("div", { class: "cards" },
    approvals.length ? card(`Approvals (${plain(approvals.length)})`, el("table", {}, el("tbody", {}, approvalLines))) : null,
    bins.length ? card(`Open bins (${plain(bin_count)})`, el("table", {}, el("tbody", {}, binLines))) : null,
    rejected ? card(`Rejected rows (${plain(rejected.count)})`, el("p", { class: "quiet" }, "All of them are in ", el("code", {}, rejected.uri), "."),
      el("table", {}, el("thead", {}, el("tr", {}, names.map((name) => el("th", {}, name)))),
        el("tbody", {}, rejected.rows.map((row) => el("tr", {}, names.map((name) => el("td", {}, exact(row[name] ?? null))))))),
      rejected.next ? next : null) : null,
    !approvals.length && !bins.length && !rejected ? el("p", { class: "quiet" }, "Nothing waits, and no row was rejected.") : null));
}

/** Show the rows that an undo of the newest run in force takes back, and its commands. */
export async function showUndo({ dataset, open, show }) {
  const { runs } = await ask(`/${dataset.asset_id}/runs`);
  const run = runs.find(({ kind, undone }) => kind === "run" && undone === false);
  if (!run) return show(el("p", { class: "quiet" }, "None of the newest runs can be undone."));
  // In single quotes, a shell takes every character as it is.
  const command = `airflow_merge_provider undo '${(dataset.location ?? "").replaceAll("'", "'\\''")}'`;
  // The rows of a table without a version before the run are all removed.
  const rows = dataset.is_table && run.version > 0 ? el("button", { type: "button" }, "Show the rows that it takes back") : null;
  rows?.addEventListener("click", () => open("changes", { first: dataset.version, last: run.version - 1 }));
  show(el("div", { class: "cards" },
    card(`The newest run in force is run ${plain(run.number)}, version ${plain(run.version)}`,
      el("p", {}, run.sentence ? `${run.sentence}.` : ""), el("p", {}, "An undo restores the rows, the source offsets and the side tables of before the run. "), rows, el("p", {}, "Show what it would do:"),
      copied(`${command} --dry-run`), el("p", {}, "Undo it:"), copied(command))));
}
