// Two datasets side by side: schema, distributions, and rows of the same number.

import { get, of } from "view/api.js";
import { go, link } from "view/app.js";
import { h, number, show, table } from "view/dom.js";
import { card } from "view/columns.js";
import { plain, short } from "view/values.js";

export async function page({ main, dataset, overview, parameters, signal }) {
  const { datasets } = await get("datasets", {}, signal);
  const others = datasets.filter((each) => each.name !== dataset && !each.error);
  if (!others.length) return void show(main, h("p", { class: "empty" }, "There is no other dataset here. Give both: ", h("code", {}, "seedbed view DIR OTHER"), ", or start ", h("code", {}, "seedbed view"), " in the folder of both."));
  const chosen = others.find((each) => each.name === parameters.with) || others[0];
  const select = h("select", { id: "with", onchange: (event) => go(dataset, "compare", { with: event.target.value }) }, others.map((each) => h("option", { value: each.name, selected: each === chosen }, `${each.name} (${number(each.rows)} rows)`)));
  const parts = { schema: h("section"), rows: h("section"), columns: h("section", {}, h("p", { class: "quiet", role: "status" }, "Reading the columns …")) };
  show(main, h("div", { class: "toolbar" }, h("label", { for: "with" }, `${overview.title} beside `), select), parts.schema, parts.rows, parts.columns);

  const types = (each) => new Map(each.columns.map((column) => [column.name, column.type]));
  const [mine, theirs] = [types(overview), types(chosen)], names = [...new Set([...mine.keys(), ...theirs.keys()])];
  show(parts.schema, h("h2", {}, "Schema"), table(["column", dataset, chosen.name, ""], names.map((name) => [name, mine.get(name) ?? "–", theirs.get(name) ?? "–", mine.get(name) === theirs.get(name) ? "same" : mine.has(name) && theirs.has(name) ? "differs" : "only in one"]), { label: "schemas" }),
    h("p", { class: "quiet" }, `${number(overview.rows)} rows beside ${number(chosen.rows)}.`));

  let offset = 0;
  const draw = async () => {
    const found = await get("match", { a: dataset, b: chosen.name, offset, limit: 10 }, signal);
    const [left, right] = found.columns, common = left.filter((name) => right.includes(name));
    const shown = { shown: "text" };
    const differs = (at, name) => plain(found.rows[0][at][left.indexOf(name)]) !== plain(found.rows[1][at][right.indexOf(name)]);
    show(parts.rows, h("h2", {}, "Rows of the same number ", h("small", {}, `${number(found.total)} in both`)), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "rows side by side" }, h("table", { class: "list compare" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "row"), common.map((name) => h("th", { scope: "col" }, name)))),
      found.numbers.map((row, at) => h("tbody", {}, [0, 1].map((side) => h("tr", {}, side ? null : h("th", { scope: "rowgroup", rowspan: 2 }, h("a", { href: link(dataset, "row", { number: row }) }, number(row))),
        common.map((name) => h("td", { class: differs(at, name) ? "differs" : null }, short(found.rows[side][at][found.columns[side].indexOf(name)], shown))))))))),
      h("p", { class: "steps" }, h("button", { type: "button", disabled: offset === 0, onclick: () => { offset = Math.max(0, offset - 10); draw(); } }, "‹ previous"), h("button", { type: "button", disabled: offset + 10 >= found.total, onclick: () => { offset += 10; draw(); } }, "next ›")));
  };
  await draw();
  const [a, b] = await Promise.all([dataset, chosen.name].map((name) => get(of(name, "statistics"), {}, signal)));
  const other = new Map(b.fields.map((field) => [field.name, field]));
  const pairs = a.fields.filter((field) => other.has(field.name));
  show(parts.columns, h("h2", {}, "Distributions ", h("small", {}, `bars: ${dataset}, line: ${chosen.name}`)), h("div", { class: "cards" }, pairs.map((field) => h("div", { class: "pair" }, card(field, dataset, overview, other.get(field.name)), beside(field, other.get(field.name), chosen.name)))));
}

function beside(field, other, name) {
  const line = (label, one, two) => [label, one ?? null, two ?? null];
  return table(["", "here", name], [line("nulls", field.nulls, other.nulls), line("distinct", field.distinct, other.distinct), line("mean", field.mean, other.mean), line("median", field.median, other.median), ...(field.diversity && other.diversity ? [line("distinct pairs", field.diversity.distinct_2, other.diversity.distinct_2), line("near-duplicates", field.diversity.near_duplicates, other.diversity.near_duplicates)] : [])], { label: `figures of ${field.name}` });
}
