// The recipe as a drawing, with the figures of each column.

import { get, of } from "view/api.js";
import { link } from "view/app.js";
import { compact, h, money, percent, show, svg, table } from "view/dom.js";

const KINDS = { from_scratch: "from scratch", cell: "cell by cell", full_column: "whole column" };

export async function page({ main, dataset, overview, signal }) {
  const { drawing, rows } = await get(of(dataset, "graph"), {}, signal);
  if (!drawing) return void show(main, h("p", { class: "empty" }, "No run of this dataset has an event log here, so its recipe is not known."));
  const total = overview.requested || 1;
  const box = (each) => {
    const name = each.name, done = each.figures.done;
    const share = done === undefined ? (rows ? rows / total : 0) : Math.min(1, done / total);
    const note = [each.figures.tokens ? `${compact(each.figures.tokens)} tokens` : "", each.figures.cost ? money(each.figures.cost) : "", each.figures.failed ? `${each.figures.failed} failed` : ""].filter(Boolean).join(" · ");
    return svg("a", { href: overview.columns.some((column) => column.name === name) ? link(dataset, "columns") : "#", class: `node ${each.kind}` },
      svg("title", {}, `${percent(share)} done${note ? `, ${note}` : ""}`),
      svg("rect", { x: each.x, y: each.y, width: each.width, height: each.height, rx: each.kind === "full_column" ? each.height / 2 : 7 }),
      svg("rect", { class: "done", x: each.x + 8, y: each.y + each.height - 4, width: Math.max(0, (each.width - 16) * share), height: 2 }),
      svg("text", { x: each.x + each.width / 2, y: each.y + 18, class: "name" }, name),
      svg("text", { x: each.x + each.width / 2, y: each.y + 34, class: "below" }, each.below));
  };
  show(main,
    h("p", { class: "legend" }, Object.entries(KINDS).map(([kind, text]) => h("span", { class: `key ${kind}` }, text))),
    h("div", { class: "scroll drawing", tabindex: "0", role: "region", "aria-label": "graph of the columns" }, svg("svg", { width: drawing.width, height: drawing.height, viewBox: `0 0 ${drawing.width} ${drawing.height}`, role: "group", "aria-label": "columns and what they require" },
      svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z", class: "tip" }))),
      drawing.edges.map((edge) => svg("path", { class: "edge", d: edge.path, "marker-end": "url(#tip)" }, svg("title", {}, `${edge.ends[1]} requires ${edge.ends[0]}`))),
      drawing.boxes.map(box))),
    table(["column", "kind", "requires", "calls", "tokens", "cost"], drawing.boxes.map((each) => [each.name, KINDS[each.kind], drawing.edges.filter((edge) => edge.ends[1] === each.name).map((edge) => edge.ends[0]).join(", ") || "–", each.figures.calls ?? null, each.figures.tokens ?? null, each.figures.cost ? money(each.figures.cost) : "–"]), { label: "columns of the recipe" }));
}
