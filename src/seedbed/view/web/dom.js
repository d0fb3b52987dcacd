// Elements, numbers as text, and the small charts that all pages share. Text is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false).map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

const PLAIN = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(2);
  return PLAIN.format(value);
}

export const compact = (value) => (value === null || value === undefined ? "–" : Math.abs(value) < 10000 ? number(Math.round(value * 100) / 100) : SHORT.format(value));
export const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(share && share < 0.01 ? 2 : share && share < 0.1 ? 1 : 0)} %`);
export const money = (value) => (value === null || value === undefined ? "–" : value >= 100 || !value ? value.toFixed(2) : value.toFixed(4));

export function bytes(count) {
  const at = count ? Math.min(3, Math.floor(Math.log10(count) / 3)) : 0;
  return `${number(Math.round((count / 1000 ** at) * 10) / 10)} ${["B", "kB", "MB", "GB"][at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
  const whole = Math.ceil(seconds);
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}h${two((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86400)}d${two((whole % 86400) / 3600)}h`;
}

export function figure(label, value, note) {
  return h("div", { class: "figure" }, h("dt", {}, label), h("dd", {}, value, note ? h("small", {}, " ", note) : null));
}

export const figures = (...list) => h("dl", { class: "figures" }, list);

export function table(heads, rows, options = {}) {
  const isNumber = heads.map((_, at) => rows.length > 0 && rows.every((row) => row[at] === null || typeof row[at] === "number"));
  const cell = (value, at) => h("td", { class: isNumber[at] ? "n" : null }, value instanceof Node || Array.isArray(value) ? value : isNumber[at] ? number(value) : value === null ? "–" : String(value));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.label || "table" },
    h("table", { class: "list" },
      h("thead", {}, h("tr", {}, heads.map((head, at) => h("th", { scope: "col", class: isNumber[at] ? "n" : null }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

export function bar(share, label) {
  return h("span", { class: "bar", role: "img", "aria-label": label || percent(share) }, h("span", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));
}

// A histogram of [low, high, count] bins; with `choose` each bin is a button that filters by it.
export function histogram(bins, { height = 48, label = "distribution", choose = null, other = null } = {}) {
  const most = Math.max(1, ...bins.map((bin) => bin[2]));
  const width = 240, step = width / Math.max(1, bins.length);
  const bars = bins.map(([low, high, count], at) => {
    const tall = count ? Math.max(1.5, (count / most) * height) : 0;
    const text = `${number(low)} to ${number(high)}: ${number(count)}`;
    return svg("g", { class: choose ? "bin choice" : "bin", onclick: choose ? () => choose(low, high, at === bins.length - 1) : null },
      svg("title", {}, text),
      svg("rect", { class: "hit", x: at * step, y: 0, width: step, height }),
      svg("rect", { class: "fill", x: at * step + 0.5, y: height - tall, width: Math.max(0.5, step - 1), height: tall }));
  });
  const line = other && svg("path", { class: "other", d: outline(other, bins, most, width, height) });
  return svg("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${describe(bins)}` }, bars, line);
}

function describe(bins) {
  if (!bins.length) return "no values";
  const top = bins.reduce((best, bin) => (bin[2] > best[2] ? bin : best));
  return `${number(bins[0][0])} to ${number(bins[bins.length - 1][1])}, most often ${number(top[0])} to ${number(top[1])}`;
}

function outline(other, bins, most, width, height) {
  const total = (list) => list.reduce((sum, bin) => sum + bin[2], 0) || 1;
  const low = bins[0][0], high = bins[bins.length - 1][1], span = high - low || 1;
  const scale = (total(bins) / total(other)) / most;
  const clamp = (value) => Math.max(0, Math.min(height, value));
  return other.map(([from, to, count], at) => {
    const [x1, x2] = [from, to].map((value) => Math.max(0, Math.min(width, ((value - low) / span) * width)));
    const y = clamp(height - count * scale * height);
    return `${at ? "L" : "M"}${x1.toFixed(1)} ${y.toFixed(1)}L${x2.toFixed(1)} ${y.toFixed(1)}`;
  }).join("");
}

// Lines over time: each series is {name, points: [[x, y]], class}.
export function lines(series, { height = 120, label = "over time", unit = "" } = {}) {
  const all = series.flatMap((each) => each.points);
  const width = 600, right = Math.max(1e-9, ...all.map((point) => point[0])), top = Math.max(1, ...all.map((point) => point[1])) * 1.08;
  const place = ([x, y]) => `${((x / right) * width).toFixed(1)} ${(height - (y / top) * height).toFixed(1)}`;
  const paths = series.map((each) => {
    if (!each.points.length) return null;
    const steps = each.stepped ? each.points.flatMap((point, at) => (at ? [[point[0], each.points[at - 1][1]], point] : [point])) : each.points;
    const path = `M${steps.map(place).join("L")}`;
    return [each.filled ? svg("path", { class: `area ${each.class}`, d: `${path}L${place([steps[steps.length - 1][0], 0])}L${place([steps[0][0], 0])}Z` }) : null,
      svg("path", { class: `line ${each.class}`, d: path, "vector-effect": "non-scaling-stroke" })];
  });
  const last = series.map((each) => `${each.name} ${each.points.length ? compact(each.points[each.points.length - 1][1]) : "–"}`).join(", ");
  return h("figure", { class: "chart" },
    h("div", { class: "plot" },
      svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: now ${last}`, style: { height: `${height}px` } },
        [0.25, 0.5, 0.75].map((share) => svg("line", { class: "grid", x1: 0, x2: width, y1: height * share, y2: height * share })), paths),
      h("span", { class: "top", "aria-hidden": "true" }, `${compact(top / 1.08)}${unit}`)),
    h("figcaption", {}, series.map((each) => h("span", { class: `key ${each.class}` }, each.name)), h("span", { class: "right" }, duration(right))));
}

export function command(words) {
  const text = words.map((word) => (/^[\w./:=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
  const button = h("button", { type: "button", class: "copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "select and copy"; }
  } }, "copy");
  return h("p", { class: "command" }, h("code", { tabindex: "0" }, text), button);
}

export function announce(text) {
  let region = document.getElementById("said");
  if (!region) document.body.append((region = h("div", { id: "said", class: "hidden", role: "status", "aria-live": "polite" })));
  if (region.textContent !== text) region.textContent = text;
}
