// The distribution of each column, and how judge scores go together.

import { get, of } from "view/api.js";
import { link } from "view/app.js";
import { bar, compact, figure, figures, h, histogram, number, percent, show } from "view/dom.js";

export async function page({ main, dataset, overview, signal }) {
  show(main, h("p", { class: "quiet", role: "status" }, "Reading the columns …"));
  const found = await get(of(dataset, "statistics"), {}, signal);
  const note = found.sampled < found.rows ? `Counts are those of all ${number(found.rows)} rows, distributions those of ${number(found.sampled)} of them.` : `All ${number(found.rows)} rows.`;
  show(main, h("p", { class: "quiet" }, note), h("div", { class: "cards" }, found.fields.map((each) => card(each, dataset, overview))), correlations(found.correlations),
    overview.conflicts.length ? h("section", {}, h("h2", {}, "Conflicts"), h("ul", {}, overview.conflicts.map((each) => h("li", { class: "error" }, each)))) : null);
}

export const measured = (field) => ({ number: "value", boolean: "value", time: "time", text: "characters", document: "characters", list: "items", binary: "bytes" })[field.kind] || "value";
const shownAs = (field) => (value) => (field.kind === "time" && value !== null && value > 1e6 ? new Date(value * 1000).toISOString().slice(0, 16).replace("T", " ") : compact(value));

export function card(field, dataset, overview, other = null) {
  const column = overview.columns.find((each) => each.name === field.name);
  const text = shownAs(field), values = field.rows - field.nulls;
  return h("section", { class: "card column", id: `c-${field.name}` },
    h("h2", {}, field.name, h("small", {}, (column && column.made_by) || field.dtype.slice(0, 40))),
    figures(
      figure("nulls", percent(field.nulls / Math.max(1, field.rows))),
      figure("distinct", compact(field.distinct), values ? percent(Math.min(1, field.distinct / values)) : null),
      field.kind === "text" || field.kind === "list" || field.kind === "document" || field.kind === "binary" ? figure(measured(field), text(field.mean), `${text(field.minimum)}–${text(field.maximum)}`) : field.kind === "null" ? null : figure("mean", text(field.mean), field.std === null ? null : `± ${compact(field.std)}`),
      field.kind === "number" || field.kind === "time" ? figure("median", text(field.median), `${text(field.minimum)}–${text(field.maximum)}`) : null,
      field.tokens ? figure("tokens", `≈ ${compact(field.tokens)}`) : null),
    field.histogram.length > 1 ? [histogram(field.histogram, { label: `${measured(field)} of ${field.name}`, other: other && other.histogram.length > 1 ? other.histogram : null }), h("p", { class: "axis" }, h("span", {}, text(field.histogram[0][0])), h("span", {}, measured(field)), h("span", {}, text(field.histogram[field.histogram.length - 1][1])))] : null,
    field.top.length && field.kind !== "number" ? tops(field, dataset, column) : null,
    field.diversity && field.distinct > 50 ? h("dl", { class: "figures small" },
      figure("distinct words", percent(field.diversity.distinct_1)), figure("distinct pairs", percent(field.diversity.distinct_2)),
      figure("near-duplicates", percent(field.diversity.near_duplicates)), figure("compression", `${number(Math.round(field.diversity.compression * 10) / 10)} ×`, `of ${number(field.diversity.texts)} texts`)) : null);
}

function tops(field, dataset, column) {
  const most = field.top[0][1];
  return h("ul", { class: "top" }, field.top.slice(0, 8).map(([value, count]) => h("li", {}, column ? h("a", { href: link(dataset, "rows", { where: `"${field.name.replaceAll('"', '""')}" = ${field.kind === "boolean" ? value : `'${value.replaceAll("'", "''")}'`}` }) }, value || "(empty)") : h("span", {}, value), bar(count / most, `${value}: ${count}`), h("b", {}, number(count)))));
}

function correlations(pairs) {
  const names = [...new Set(pairs.flatMap(([one, other]) => [one, other]))];
  if (names.length < 2) return null;
  const of_ = new Map(pairs.flatMap(([one, other, value]) => [[`${one}\n${other}`, value], [`${other}\n${one}`, value]]));
  const cell = (value) => value === undefined ? h("td", {}, "·") : h("td", { class: "n heat", style: { "--heat": Math.abs(value).toFixed(3), "--hue": value < 0 ? "20" : "160" } }, value.toFixed(2));
  return h("section", {}, h("h2", {}, "Correlations"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "correlations" }, h("table", { class: "list matrix" },
    h("thead", {}, h("tr", {}, h("td", {}), names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), names.map((other) => cell(name === other ? 1 : of_.get(`${name}\n${other}`)))))))));
}
