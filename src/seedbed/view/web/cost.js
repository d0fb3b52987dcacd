// What was paid for: by column and by model, and work whose result is not in the dataset.

import { get, of } from "view/api.js";
import { bar, compact, figure, figures, h, money, show, table } from "view/dom.js";

export async function page({ main, dataset, signal }) {
  const found = await get(of(dataset, "cost"), {}, signal);
  const sum = (list, name) => list.reduce((total, each) => total + each[name], 0);
  const all = found.columns;
  if (!all.length) return void show(main, h("p", { class: "empty" }, "No call has reported its usage."));
  const tokens = (each) => each.input_tokens + each.output_tokens;
  const listed = (list, heading) => {
    const most = Math.max(1e-12, ...list.map((each) => each.cost || 0)), mostTokens = Math.max(1, ...list.map(tokens));
    return table([heading, "share", "calls", "tokens in", "tokens out", "cost", "per 1,000 rows"], list.map((each) => [each[heading] || "(checks)", bar(each.cost ? each.cost / most : tokens(each) / mostTokens, `${each[heading]}`), each.calls, each.input_tokens, each.output_tokens, money(each.cost), money(each.per_1000_rows)]), { label: `cost by ${heading}` });
  };
  const wasted = found.wasted.map((each) => [each.column, each.calls, each.tokens, Math.round(each.seconds * 10) / 10]);
  show(main,
    figures(figure("cost", money(sum(all, "cost"))), figure("calls", compact(sum(all, "calls"))), figure("tokens in", compact(sum(all, "input_tokens"))), figure("tokens out", compact(sum(all, "output_tokens"))), figure("per 1,000 rows", money(sum(all, "per_1000_rows")))),
    h("section", {}, h("h2", {}, "By column"), listed(all, "column")),
    found.models.length ? h("section", {}, h("h2", {}, "By model"), listed(found.models, "model")) : null,
    (found.stages || []).length > 1 ? h("section", {}, h("h2", {}, "By stage"), listed(found.stages, "stage")) : null,
    h("section", {}, h("h2", {}, "Wasted work"), wasted.length ? table(["column", "calls", "tokens", "seconds"], wasted, { label: "wasted work" }) : h("p", { class: "quiet" }, "None that a run reported: every answer is in the dataset.")));
}
