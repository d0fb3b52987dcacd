// A run, live or as it ended: progress, throughput, throttles, row groups, cost.

import { of, stream } from "view/api.js";
import { go, link } from "view/app.js";
import { announce, bar, compact, duration, figure, figures, h, lines, money, number, percent, show, svg, table } from "view/dom.js";

export async function page({ main, dataset, overview, parameters, signal }) {
  let header = null, points = [], current = 0, state = {}, report = null, runs = [], due = 0;
  const receive = (message) => {
    if (message.run !== current) [current, points, header, report] = [message.run, [], null, null];
    if (message.header) header = message.header;
    if (message.report) report = message.report;
    state = message;
    runs = message.runs || [];
    for (const point of message.points || []) points.push(point);
    if (points.length > 3000) points = points.filter((_, at) => at % 2 === 0 || at > points.length - 600);
    due ||= requestAnimationFrame(() => { due = 0; if (!signal.aborted) draw(); });
  };

  const frame = h("div", { class: "run" });
  show(main, frame);

  function draw() {
    const last = points[points.length - 1];
    if (!last) return show(frame, h("p", { class: "quiet" }, state.exists === false ? "The build has not written anything yet." : state.run ? "The run has just begun." : "No run of this dataset has an event log here: the other pages have what it holds."));
    const isLive = state.running && !last.finished && !last.ended;
    // What a process that was killed had still written after its last snapshot is in the manifest.
    if (!isLive && !last.finished && (state.written || 0) > last.written) [last.written, last.dropped] = [state.written, state.dropped];
    const total = last.rows || 1, now = last.written + last.dropped;
    const word = last.error ? "stopped" : last.finished ? "finished" : isLive ? last.stopping ? "stopping" : "running" : "crashed";
    if (!isLive) announce(`The run has ${word === "finished" ? "finished" : "ended"}: ${number(last.written)} rows`);
    const rate = (key, at) => { const from = points[Math.max(0, at - 8)], to = points[at]; const span = to.t - from.t; return span > 0 ? Math.max(0, ((to.keys[key]?.calls || 0) - (from.keys[key]?.calls || 0)) / span) : 0; };
    const keys = Object.entries(last.keys);
    show(frame,
      h("div", { class: "headline" },
        h("div", { class: "meter", role: "progressbar", "aria-label": "rows", "aria-valuenow": Math.round((now / total) * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, h("span", { class: "done", style: { width: `${(last.written / total) * 100}%` } }), h("span", { class: "lost", style: { width: `${(last.dropped / total) * 100}%` } })),
        figures(
          figure("rows", `${number(last.written)}`, `of ${number(last.rows)}`),
          figure("state", word, last.stopping || null),
          figure("time", duration(last.t), isLive && last.eta ? `${duration(last.eta)} left` : null),
          figure("tokens", compact(last.tokens)),
          figure("cost", money(last.cost), isLive && last.predicted_cost ? `${money(last.predicted_cost)} at the end` : null),
          figure("dropped", number(last.dropped), last.dropped ? percent(last.dropped / Math.max(1, now)) : null),
          figure("durable", compact(last.durable), "cells"),
          last.salvage_rounds ? figure("salvage rounds", number(last.salvage_rounds)) : null)),
      last.error ? h("p", { class: "error", role: "alert" }, last.error, " ", h("a", { href: link(dataset, "drops") }, "What can be done")) : null,
      !isLive && !last.finished && !last.error ? h("p", { class: "error" }, "The process of this run ended without closing its log: it was killed or crashed. Finished rows and cells are preserved. ", h("a", { href: link(dataset, "drops") }, "How to resume")) : null,
      stages().map(([stage, names]) => h("section", {}, h("h2", {}, stage ? ["Stage ", stage] : "Columns"), table(["column", "progress", "done", "rate", "left", "running", "retried", "failed", "cost"],
        names.map((name) => [name, last.columns[name]]).map(([name, each]) => [name, bar(each.done / (each.total || total), `${name}: ${percent(each.done / (each.total || total))}`), percent(each.done / (each.total || total)), each.rate ? `${compact(each.rate)}/s` : "–", each.done < (each.total || total) && isLive ? duration(each.eta) : "–", each.running, each.retried, each.failed, each.cost ? money(each.cost) : "–"]), { label: `progress of the columns ${stage}` }))),
      h("section", { class: "charts" }, keys.map(([key, each]) => h("div", { class: "card" },
        h("h2", {}, each.name, each.name === key ? null : h("small", {}, key)),
        figures(figure("in flight", `${each.in_flight}`, each.limit === null ? null : `limit ${each.limit}`), figure("calls", compact(each.calls)), figure("rate limits", number(each.rate_limited)), figure("tokens/s", compact(each.tokens_per_second)), figure("median", each.p50 === null ? "–" : `${compact(each.p50 * 1000)} ms`, each.p95 === null ? null : `95 %: ${compact(each.p95 * 1000)} ms`)),
        lines([{ name: "calls in flight", class: "a", filled: true, points: points.map((point) => [point.t, point.keys[key]?.in_flight ?? 0]) }, { name: "limit of the throttle", class: "b", stepped: true, points: points.filter((point) => point.keys[key]?.limit).map((point) => [point.t, point.keys[key].limit]) }], { height: 96, label: `calls in flight of ${each.name}` }),
        lines([{ name: "calls per second", class: "c", filled: true, points: points.map((point, at) => [point.t, rate(key, at)]) }], { height: 72, label: `throughput of ${each.name}` })))),
      groups(),
      Object.keys(last.reasons).length ? h("section", {}, h("h2", {}, "Drops of this run"), table(["rows", "reason"], Object.entries(last.reasons).map(([reason, count]) => [count, reason]), { label: "drops by reason" })) : null,
      report && Object.keys(report.wasted).length ? h("section", {}, h("h2", {}, "Wasted work"), table(["column", "calls", "tokens", "seconds"], Object.entries(report.wasted).map(([name, each]) => [name, each.calls, each.tokens, Math.round(each.seconds * 10) / 10]), { label: "wasted work" })) : null,
      header && header.started ? h("p", { class: "quiet" }, `Began ${new Date(header.started * 1000).toLocaleString()}. `, runs.length > 1 ? ["Runs: ", runs.slice(-12).map((run) => [h("a", { href: link(dataset, "run", { run }), "aria-current": run === current ? "true" : null }, String(run)), " "])] : null) : null);
  }

  // The columns by stage, in the order of the recipe; one list without a name for a recipe that has none.
  function stages() {
    const last = points[points.length - 1], of_ = new Map((header?.columns || []).map((column) => [column.name, column.stage || ""]));
    const found = new Map();
    for (const name of Object.keys(last.columns)) { const stage = of_.get(name) || ""; found.set(stage, [...(found.get(stage) || []), name]); }
    return [...found];
  }

  // One square for each row group: committed, open (how far), with drops, not begun.
  function groups() {
    const count = state.row_groups || 0, last = points[points.length - 1];
    if (!count) return null;
    const done = new Map((state.finished_groups || []).map(([index, rows, dropped]) => [index, [rows, dropped]]));
    // Row groups are named after their stage and number, in a recipe without stages by their number.
    const stage = overview?.stage ? `${overview.stage} ` : "";
    const open = last.finished ? {} : Object.fromEntries(Object.entries(last.groups || {}).filter(([key]) => key.startsWith(stage)).map(([key, share]) => [key.slice(stage.length), share]));
    const legend = h("p", { class: "legend" }, [["done", "committed"], ["lost", "with drops"], ["open", "open"], ["none", "not begun"]].map(([name, text]) => h("span", { class: `key ${name}` }, text)));
    const title = `${number(done.size)} of ${number(count)} row groups committed, ${Object.keys(open).length} open`;
    if (count > 2000) {
      // One strip: as many bins as it has room for, each as full as its row groups are.
      const bins = Array.from({ length: 400 }, () => [0, 0]);
      for (const [index, [, dropped]] of done) { const bin = bins[Math.min(399, Math.floor((index / count) * 400))]; bin[0] += 400 / count; bin[1] += dropped ? 400 / count : 0; }
      return h("section", {}, h("h2", {}, "Row groups ", h("small", {}, title)), svg("svg", { class: "strip wide", viewBox: "0 0 400 20", preserveAspectRatio: "none", role: "img", "aria-label": title }, bins.map(([full, lost], at) => [svg("rect", { class: "none", x: at, y: 0, width: 1, height: 20 }), svg("rect", { class: lost ? "lost" : "done", x: at, y: 20 - Math.min(1, full) * 20, width: 1, height: Math.min(1, full) * 20 })])), legend);
    }
    const size = count > 600 ? 8 : count > 150 ? 12 : 18;
    const squares = [];
    for (let index = 0; index < count; index++) {
      const found = done.get(index), share = open[index];
      const kind = found ? (found[1] ? "lost" : "done") : share === undefined ? "none" : "open";
      squares.push(h("span", { class: `square ${kind}`, title: found ? `row group ${index}: ${found[0]} rows${found[1] ? `, ${found[1]} dropped` : ""}` : share === undefined ? `row group ${index}` : `row group ${index}: ${percent(share)}`, style: { width: `${size}px`, height: `${size}px` } }, share === undefined || found ? null : h("span", { style: { height: `${share * 100}%` } })));
    }
    return h("section", {}, h("h2", {}, "Row groups ", h("small", {}, title)), h("div", { class: "squares", role: "img", "aria-label": title }, squares), legend);
  }

  const follow = async () => {
    while (!signal.aborted) {
      try {
        await stream(of(dataset, "run"), { run: parameters.run }, receive, signal);
        return;
      } catch (error) {
        if (signal.aborted) return;
        if (error.status) throw error;
        frame.prepend(h("p", { class: "error" }, error.message));
        await new Promise((wake) => setTimeout(wake, 2000));
      }
    }
  };
  follow().catch((error) => show(frame, h("p", { class: "error" }, error.message)));
  if (!overview) {
    // The frame of the page fills as soon as there is a dataset.
    const again = setInterval(() => { if (state.exists) { clearInterval(again); go(dataset, "run", { ...parameters, now: 1 }); } }, 500);
    signal.addEventListener("abort", () => clearInterval(again));
  }
}
