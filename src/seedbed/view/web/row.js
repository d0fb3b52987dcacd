// One row: every column in full, the prompts that it was generated from, its origin, keys to its neighbours.

import { get, of } from "view/api.js";
import { go, link } from "view/app.js";
import { h, money, number, show, table } from "view/dom.js";
import { full, messages } from "view/values.js";

export async function page({ main, dataset, overview, parameters, signal }) {
  const { where, text, sort, descending } = parameters;
  const query = { where, text, sort, descending };
  const found = await get(of(dataset, "row"), { ...query, number: parameters.number || 0 }, signal);
  const address = { dataset, number: found.number };
  const step = (target, label, key) => target === null || target === undefined ? h("span", { class: "button off", "aria-disabled": "true" }, label) : h("a", { class: "button", href: link(dataset, "row", { ...query, number: target }), title: `key ${key}` }, label);
  const columns = overview.columns.map((column, at) => {
    const prompt = found.prompts[column.name], cell = found.cells[at];
    const made = [column.made_by, column.model].filter(Boolean).join(" · ") || column.type;
    return h("section", { class: "field" },
      h("h3", {}, column.name, h("small", {}, made)),
      full(cell, column, {}, address, signal),
      prompt ? h("details", { class: "prompt" }, h("summary", {}, "prompt"), messages(prompt)) : null);
  });
  show(main,
    h("div", { class: "toolbar" }, h("a", { class: "button", href: link(dataset, "rows", query) }, "← rows"), h("h2", {}, `Row ${number(found.number)}`, h("small", {}, ` of ${number(found.total)}${found.part ? `, in ${found.part}` : found.part === null ? ", in an open row group" : ""}`)),
      h("span", { class: "steps" }, step(found.previous, "‹ previous", "k"), step(found.next, "next ›", "j"))),
    origin(found.origin, dataset),
    h("div", { class: "fields" }, columns));
  const keys = (event) => {
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = { j: found.next, ArrowRight: found.next, k: found.previous, ArrowLeft: found.previous }[event.key];
    if (target !== null && target !== undefined) go(dataset, "row", { ...query, number: target });
    else if (event.key === "Escape") go(dataset, "rows", query);
  };
  document.addEventListener("keydown", keys, { signal });
}

function origin(provenance, dataset) {
  if (!provenance) return null;
  const facts = provenance.facts || [];
  const rows = (provenance.cells || []).map((cell) => [cell.column, cell.model || "–", cell.attempts ?? null, cell.calls ?? null, cell.input_tokens ?? null, cell.output_tokens ?? null, cell.cost === undefined ? "–" : money(cell.cost), cell.seconds === undefined ? "–" : `${number(Math.round(cell.seconds * 1000) / 1000)} s`]);
  const relatives = (label, list) => list && list.length ? h("p", {}, `${label}: `, list.map((each) => [h("a", { href: link(each.dataset || dataset, "row", { number: each.number }) }, each.label || `row ${number(each.number)}`), " "])) : null;
  return h("details", { class: "card origin", open: true }, h("summary", {}, "Where this row comes from"),
    facts.length ? h("p", { class: "quiet" }, facts.join(" · ")) : null,
    relatives("Parents", provenance.parents), relatives("Children", provenance.children),
    rows.length ? table(["column", "model", "attempts", "calls", "tokens in", "tokens out", "cost", "latency"], rows, { label: "calls of this row" }) : null);
}
