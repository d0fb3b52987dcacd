// Rows that are not in the dataset: why, which, and the command that retries them.

import { get, of } from "view/api.js";
import { command, h, number, show, table } from "view/dom.js";

export async function page({ main, dataset, overview, signal }) {
  const found = await get(of(dataset, "drops"), {}, signal);
  const resume = found.resume && !overview.running ? [h("h2", {}, "Not finished"), h("p", {}, "Finished cells are not generated again. To resume:"), command(found.resume)] : null;
  if (!found.total) return void show(main, h("p", { class: "empty" }, "No row was dropped."), resume);
  let chosen = null;
  const list = h("div");
  const draw = () => {
    const rows = found.rows.filter((row) => !chosen || (row.column === chosen.column && row.error === chosen.error && row.kind === chosen.kind));
    show(list, table(["row", "column", "attempts", "kind", "error"], rows.slice(0, 1000).map((row) => [row.copy ? `${number(row.row)} + ${row.copy}` : row.row, row.column, row.attempts, row.kind, row.error]), { label: "dropped rows" }),
      found.total > found.rows.length ? h("p", { class: "quiet" }, `The first ${number(found.rows.length)} of ${number(found.total)}; Dataset.dropped() has all of them and what was generated of them.`) : null);
  };
  const most = found.reasons[0].rows;
  show(main,
    found.retry ? h("section", { class: "card" }, h("h2", {}, "Retry them"), h("p", {}, "Only their missing cells are generated."), command(found.retry)) : null, resume,
    h("section", {}, h("h2", {}, "Reasons"), h("ul", { class: "reasons" }, found.reasons.map((reason) => h("li", {}, h("button", { type: "button", "aria-pressed": "false", onclick: (event) => {
      chosen = chosen === reason ? null : reason;
      for (const button of main.querySelectorAll(".reasons button")) button.setAttribute("aria-pressed", "false");
      event.currentTarget.setAttribute("aria-pressed", String(Boolean(chosen)));
      draw();
    } }, h("span", { class: "share", style: { width: `${(reason.rows / most) * 100}%` } }), h("b", {}, number(reason.rows)), h("i", {}, reason.column), h("span", { class: "what" }, reason.error)))))),
    h("section", {}, h("h2", {}, "Rows"), list));
  draw();
}
