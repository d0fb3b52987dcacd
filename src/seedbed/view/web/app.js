// The frame of all pages: which one the URL names, the navigation, keys that work everywhere.

import { Failure, get, of, report } from "view/api.js";
import { bytes, h, number, show } from "view/dom.js";
import { page as columns } from "view/columns.js";
import { page as compare } from "view/compare.js";
import { page as cost } from "view/cost.js";
import { page as drops } from "view/drops.js";
import { page as graph } from "view/graph.js";
import { page as row } from "view/row.js";
import { page as rows } from "view/rows.js";
import { page as run } from "view/run.js";

const PAGES = { run, rows, columns, drops, graph, cost, compare, row };
const NAMES = { run: "Run", rows: "Rows", columns: "Columns", drops: "Drops", graph: "Graph", cost: "Cost", compare: "Compare" };
const main = document.getElementById("main"), top_ = document.getElementById("top");
let leave = null, shown = "";

// A URL has the form #/DATASET/PAGE?parameters, the name of the dataset encoded as one part.
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [dataset = "", name = ""] = path.split("/");
  return { dataset: decodeURIComponent(dataset), page: name, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(dataset, page, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false)).toString();
  return `#/${encodeURIComponent(dataset)}/${page}${query ? `?${query}` : ""}`;
}

export function go(dataset, page, parameters = {}, { replace = false } = {}) {
  const target = link(dataset, page, parameters);
  if (replace) history.replaceState(null, "", target);
  else location.hash = target;
}

function navigation(dataset, overview, current) {
  const pages = Object.entries(NAMES).filter(([name]) => !(report && name === "compare"));
  const state = !overview ? null : overview.running ? ["running", "running"] : overview.complete ? ["complete", "complete"] : ["stopped", "not finished"];
  show(top_,
    h("div", { class: "title" },
      h("a", { class: "home", href: report ? "#/" : "#/", "aria-label": report ? "seedbed" : "seedbed: all datasets" }, "seedbed"),
      dataset ? h("h1", { title: overview ? overview.path : dataset }, overview ? overview.title : dataset) : h("h1", {}, "Datasets"),
      state ? h("span", { class: `state ${state[0]}` }, state[1]) : null,
      overview ? h("span", { class: "quiet counts" }, `${overview.counts} · ${bytes(overview.bytes)}`) : null),
    overview && overview.stages.length ? h("nav", { class: "stages", "aria-label": "Stages" }, overview.stages.map((stage) => h("a", { href: link(`${dataset.split("@")[0]}@${stage}`, current === "row" ? "rows" : current), "aria-current": stage === overview.stage ? "true" : null }, stage))) : null,
    dataset ? h("nav", { "aria-label": "Pages" }, pages.map(([name, text]) => h("a", { href: link(dataset, name), "aria-current": current === name || (current === "row" && name === "rows") ? "page" : null }, text,
      name === "drops" && overview && overview.dropped ? h("span", { class: "badge" }, number(overview.dropped)) : null))) : null);
}

async function list(signal) {
  const found = await get("datasets", {}, signal);
  if (found.datasets.length === 1 && !found.folder) return go(found.datasets[0].name, found.datasets[0].running ? "run" : "rows", {}, { replace: true }), route();
  document.title = "Datasets · seedbed";
  navigation("", null, "");
  show(main, found.datasets.length ? h("ul", { class: "datasets" }, found.datasets.map((each) => h("li", {},
    h("a", { href: link(each.name, each.running ? "run" : "rows") }, h("strong", {}, each.name)),
    each.error ? h("span", { class: "error" }, each.error) : [
      h("span", { class: `state ${each.running ? "running" : each.complete ? "complete" : "stopped"}` }, each.running ? "running" : each.complete ? "complete" : "not finished"),
      h("span", {}, each.counts), h("span", { class: "quiet" }, `${each.columns.length} columns · ${bytes(each.bytes)}`)]))) : h("p", { class: "quiet" }, `No datasets below ${found.folder || "here"}.`));
}

async function route() {
  const { dataset, page, parameters } = parse(location.hash);
  if (leave) leave.abort();
  const { signal } = (leave = new AbortController());
  const name = PAGES[page] ? page : "rows";
  try {
    if (!dataset && !report) return void (await list(signal));
    const id = dataset || "report";
    let overview = null;
    try {
      overview = await get(of(id, "overview"), {}, signal);
    } catch (error) {
      // A build that has just been started has no dataset yet, but a page to wait on.
      if (!error.waiting || name !== "run") throw error;
    }
    if (signal.aborted) return;
    navigation(id, overview, name);
    document.title = `${NAMES[name] || "Row"} · ${overview ? overview.title : id} · seedbed`;
    const frame = `${id}/${name}`;
    if (frame !== shown) show(main);
    await PAGES[name]({ main, dataset: id, overview, parameters, signal });
    if (shown && frame !== shown) main.focus({ preventScroll: true });
    shown = frame;
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Failure)) console.warn(error);
    shown = "";
    show(main, h("div", { class: "error", role: "alert" }, h("p", {}, error.message)));
    if (error.waiting) setTimeout(() => !signal.aborted && route(), 1000);
  }
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const { dataset } = parse(location.hash);
  const pages = Object.keys(NAMES);
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (/^[1-7]$/.test(event.key) && (dataset || report)) location.hash = link(dataset || "report", pages[Number(event.key) - 1]);
});
addEventListener("hashchange", route);
route();
