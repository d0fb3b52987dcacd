// The table over all rows: rows are placed by number in a layer that scrolls, and fetched where it stands.

import { get, of, report } from "view/api.js";
import { go, link } from "view/app.js";
import { announce, h, histogram, number, show } from "view/dom.js";
import { short } from "view/values.js";

const HEIGHT = 32, CHUNK = 100, WIDEST = 8_000_000;
const identifier = (name) => `"${name.replaceAll('"', '""')}"`;
const literal = (value) => `'${String(value).replaceAll("'", "''")}'`;
// `judge.score` is a field of a column, if there is no column of that name.
const field = (name, columns) => (columns.some((column) => column.name === name) ? identifier(name) : name.split(".").map(identifier).join("."));

export async function page({ main, dataset, overview, parameters, signal }) {
  const columns = overview.columns;
  const query = { where: parameters.where || "", text: parameters.text || "", sort: parameters.sort || "", descending: parameters.descending === "1" ? "1" : "" };
  const chunks = new Map();
  let total = 0, of_ = 0, done = false, active = Number(parameters.row || 0), failed = null;

  const text = h("input", { type: "search", id: "text", value: query.text, placeholder: "Search all text   /", "aria-label": "Search all text", autocomplete: "off", spellcheck: "false" });
  const where = h("input", { type: "text", id: "where", value: query.where, placeholder: `Filter, such as ${example(columns)}`, "aria-label": "Filter by an SQL expression", autocomplete: "off", spellcheck: "false" });
  const status = h("span", { class: "quiet", id: "count", role: "status" }), problem = h("p", { class: "error", role: "alert", hidden: true });
  const change = (next) => go(dataset, "rows", { ...query, ...next });
  const form = h("form", { class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); change({ text: text.value, where: where.value }); } },
    text, report ? null : where, h("button", { type: "submit" }, "Apply"),
    query.where || query.text || query.sort ? h("a", { class: "button", href: link(dataset, "rows") }, "Clear") : null, status, report ? null : code(overview, query));
  text.addEventListener("search", () => form.requestSubmit());

  const widths = columns.map((column) => ({ number: 110, boolean: 90, time: 170, scores: 230, image: 150, binary: 100 })[column.shown] || (/category/.test(column.made_by || "") ? 170 : columns.length < 5 ? 380 : 260));
  const template = `72px ${widths.map((width) => `minmax(${width}px, ${width}fr)`).join(" ")}`;
  const wide = 72 + widths.reduce((sum, width) => sum + width, 0);
  const sortable = (column) => h("button", { type: "button", class: "sort", title: `Sort by ${column.name}`, onclick: () => change({ sort: column.name, descending: query.sort === column.name && !query.descending ? "1" : "" }) }, column.name, query.sort === column.name ? (query.descending ? " ↓" : " ↑") : "");
  const distributions = columns.map(() => h("div", { class: "mini" }));
  const heads = columns.map((column, at) => h("div", { role: "columnheader", class: "head", "aria-sort": query.sort === column.name ? (query.descending ? "descending" : "ascending") : "none" }, sortable(column), h("small", {}, column.made_by || column.type.split("(")[0]), distributions[at]));
  const header = h("div", { class: "grid heads", role: "row", style: { "grid-template-columns": template } }, h("div", { role: "columnheader", class: "head" }, "row"), heads);
  const layer = h("div", { class: "layer" }), spacer = h("div", { class: "spacer" });
  const body = h("div", { role: "rowgroup", class: "body" }, spacer, layer);
  const view = h("div", { class: "rows", role: "grid", tabindex: "0", "aria-label": "Rows; arrow keys move, Enter opens a row", "aria-colcount": columns.length + 1 }, h("div", { role: "rowgroup", class: "top" }, header), body);
  header.parentElement.style.minWidth = body.style.minWidth = `${wide}px`;
  show(main, form, problem, view);

  const size = () => Math.max(1, Math.floor((view.clientHeight - header.offsetHeight) / HEIGHT));
  const tall = () => Math.min(WIDEST, total * HEIGHT);
  // Beyond a height that browsers can lay out, the position of the scrollbar is a share of all rows.
  const first = () => { const room = tall() - (view.clientHeight - header.offsetHeight); return room <= 0 ? 0 : total * HEIGHT <= WIDEST ? view.scrollTop / HEIGHT : (view.scrollTop / room) * Math.max(0, total - size()); };
  const scrollTo = (at) => { const room = tall() - (view.clientHeight - header.offsetHeight); view.scrollTop = total * HEIGHT <= WIDEST ? at * HEIGHT : (at / Math.max(1, total - size())) * room; };

  async function load(chunk) {
    if (chunks.has(chunk)) return;
    chunks.set(chunk, null);
    try {
      const found = await get(of(dataset, "rows"), { ...query, offset: chunk * CHUNK, limit: CHUNK }, signal);
      total = found.total; of_ = found.of; done = found.done;
      if (found.numbers.length < CHUNK && !done) chunks.delete(chunk);
      else chunks.set(chunk, found);
      if (chunks.size > 60) for (const key of [...chunks.keys()].slice(0, 20)) if (key !== chunk) chunks.delete(key);
      counted();
      paint();
    } catch (error) {
      if (signal.aborted) return;
      chunks.delete(chunk);
      failed = error;
      problem.hidden = false;
      problem.textContent = error.message;
      status.textContent = "";
    }
  }

  function counted() {
    const filtered = query.where || query.text;
    const sample = report ? " in the sample" : "";
    status.textContent = `${number(total)}${filtered && of_ ? ` of ${number(of_)}` : ""} rows${sample}${done ? "" : ", searching …"}`;
    if (done) announce(status.textContent);
  }

  function paint() {
    spacer.style.height = `${tall()}px`;
    view.setAttribute("aria-rowcount", String(total + 1));
    const start = first(), from = Math.max(0, Math.floor(start)), to = Math.min(total, from + size() + 3);
    const shift = view.scrollTop - (start - from) * HEIGHT;
    layer.style.transform = `translateY(${Math.max(0, Math.min(shift, tall() - (to - from) * HEIGHT))}px)`;
    const drawn = [];
    for (let at = from; at < to; at++) drawn.push(line(at));
    show(layer, drawn);
    for (let chunk = Math.floor(from / CHUNK); chunk <= Math.floor(Math.max(from, to - 1) / CHUNK); chunk++) if (total) load(chunk);
    if (document.getElementById(`r${active}`)) view.setAttribute("aria-activedescendant", `r${active}`);
    else view.removeAttribute("aria-activedescendant");
  }

  function line(at) {
    const found = chunks.get(Math.floor(at / CHUNK)), place = at % CHUNK;
    const values = found && found.rows[place], id = found ? found.numbers[place] : null;
    const group = found && found.open[id];
    return h("div", { class: `grid row${at === active ? " active" : ""}${group === undefined || group === null ? "" : " open"}`, role: "row", id: `r${at}`, "aria-rowindex": at + 2, "aria-selected": at === active ? "true" : "false", style: { "grid-template-columns": template }, onclick: () => id !== null && id !== undefined && open(id, at) },
      h("div", { role: "rowheader", class: "cell n" }, id === null || id === undefined ? "…" : id.toLocaleString("en"), group === undefined || group === null ? null : h("small", {}, " open")),
      columns.map((column, index) => h("div", { role: "gridcell", class: `cell k-${column.shown}` }, values ? short(values[index], column, ranges, { dataset, number: id }) : "")));
  }

  const open = (id, at) => { go(dataset, "rows", { ...query, row: at }, { replace: true }); go(dataset, "row", { ...query, number: id }); };
  let due = 0;
  view.addEventListener("scroll", () => { due ||= requestAnimationFrame(() => { due = 0; paint(); }); });
  view.addEventListener("keydown", (event) => {
    if (event.target !== view) return;
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: size(), PageUp: -size(), Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      active = Math.max(0, Math.min(total - 1, active + moves[event.key]));
      const start = first();
      if (active < Math.ceil(start)) scrollTo(active);
      else if (active > start + size() - 1) scrollTo(active - size() + 1);
      paint();
    } else if (event.key === "Enter") {
      const found = chunks.get(Math.floor(active / CHUNK));
      if (found) open(found.numbers[active % CHUNK], active);
    }
  });
  const resized = new ResizeObserver(() => paint());
  resized.observe(view);
  signal.addEventListener("abort", () => resized.disconnect());

  const ranges = {};
  await load(Math.floor(active / CHUNK));
  if (active) { scrollTo(Math.max(0, active - 3)); paint(); }
  if (!document.activeElement || document.activeElement === document.body || document.activeElement === main) view.focus({ preventScroll: true });

  // A search goes on after its first hits; a live dataset grows.
  const poll = async () => {
    if (signal.aborted || failed) return;
    try {
      if (!done) {
        const found = await get(of(dataset, "rows"), { ...query, offset: 0, limit: 1 }, signal);
        total = found.total; done = found.done;
        counted(); paint();
      } else if (overview.running && !(query.where || query.text || query.sort)) {
        const found = await get(of(dataset, "rows"), { offset: 0, limit: 1 }, signal);
        if (found.total !== total) { total = of_ = found.total; chunks.clear(); counted(); paint(); }
      }
    } catch { return; }
    if (!done || overview.running) setTimeout(poll, done ? 1000 : 200);
  };
  poll();

  if (overview.rows) get(of(dataset, "statistics"), {}, signal).then((found) => {
    const fields = new Map(found.fields.map((each) => [each.name, each]));
    for (const each of found.fields) if (each.kind === "number") ranges[each.name] = [each.minimum, each.maximum];
    columns.forEach((column, at) => {
      const each = fields.get(column.name) || {}, score = found.fields.find((other) => other.name.startsWith(`${column.name}.`));
      const used = score && column.shown === "scores" ? score : each;
      if (used.top && used.top.length && used.distinct <= 30 && used.kind !== "number") {
        const most = used.top[0][1];
        show(distributions[at], h("span", { class: "tops" }, used.top.slice(0, 3).map(([value, count]) => h("button", { type: "button", title: `${value}: ${number(count)} of the sample; click to filter`, disabled: Boolean(report), onclick: () => change({ where: `${field(used.name, columns)} = ${used.kind === "boolean" ? value : literal(value)}` }) }, h("span", { class: "share", style: { width: `${(count / most) * 100}%` } }), value))));
      } else if (used.histogram && used.histogram.length > 1) {
        const of_field = used.kind === "number" ? field(used.name, columns) : used.kind === "text" ? `length(${field(used.name, columns)})` : null;
        const choose = of_field && !report ? (low, high, last) => change({ where: `${of_field} >= ${low} AND ${of_field} ${last ? "<=" : "<"} ${high}` }) : null;
        show(distributions[at], histogram(used.histogram, { height: 22, label: used.kind === "number" ? used.name : `length of ${used.name}`, choose }));
      }
    });
    paint();
  }, () => {});
}

function example(columns) {
  const found = columns.find((column) => column.shown === "scores") || columns.find((column) => column.shown === "number");
  if (!found) return "length(text) > 200";
  return found.shown === "number" ? `${found.name} > 3` : `${found.name}.… >= 4`;
}

// The rows of this view in polars and in SQL, to go on with in a program.
function code(overview, query) {
  const files = `${overview.path}/*.parquet`;
  const conditions = [query.where, query.text ? `regexp_matches(columns::VARCHAR, ${literal(query.text)}, 'i')` : ""].filter(Boolean);
  const sql = `SELECT * FROM '${files}' AS columns${conditions.length ? ` WHERE ${conditions.join(" AND ")}` : ""}${query.sort ? ` ORDER BY ${identifier(query.sort)}${query.descending ? " DESC" : ""}` : ""}`;
  return h("details", { class: "code-of" }, h("summary", {}, "as code"), h("div", { class: "card" },
    h("p", { class: "quiet" }, "This view, to save it as a file or use it in a program:"), h("pre", { tabindex: "0" }, `import duckdb\n\nrows = duckdb.sql("""${sql}""")\nrows.write_parquet("rows.parquet")  # or rows.pl() for polars`)));
}
