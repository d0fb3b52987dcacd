// Where data comes from: the server, with the token of the URL, or what is written into the page of a report.

const inline = document.getElementById("data");
export const report = inline ? JSON.parse(inline.textContent) : null;

const KEY = "seedbed-token";
const given = /^#token=([\w-]+)$/.exec(location.hash);
if (given) {
  try { localStorage.setItem(KEY, given[1]); } catch { /* private windows: the token lasts as long as the page */ }
  history.replaceState(null, "", `${location.pathname}#/`);
}
let token = given ? given[1] : "";
try { token ||= localStorage.getItem(KEY) || ""; } catch { /* as above */ }

export class Failure extends Error {
  constructor(status, body) {
    super(body.error || `the server answered ${status}`);
    this.status = status;
    this.waiting = Boolean(body.waiting);
  }
}

const enc = (name) => name.split("/").map(encodeURIComponent).join("/");
export const of = (dataset, what) => `d/${enc(dataset)}/${what}`;

async function request(path, parameters, signal) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false));
  let response;
  try {
    response = await fetch(`./api/${path}?${query}`, { headers: { Authorization: `Bearer ${token}` }, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, { error: "the server has ended; start `seedbed view` again" });
  }
  if (response.ok) return response;
  let body = {};
  try { body = await response.json(); } catch { body = response.status === 401 ? { error: "open the URL that `seedbed view` printed: it has the token of this server" } : {}; }
  throw new Failure(response.status, body);
}

export async function get(path, parameters = {}, signal) {
  if (report) return answer(path, parameters);
  return (await request(path, parameters, signal)).json();
}

export async function blob(path, parameters, signal) {
  if (report) throw new Failure(404, { error: "a report has no pictures" });
  return (await request(path, parameters, signal)).blob();
}

// Server-sent events, through fetch because EventSource cannot send the token.
export async function stream(path, parameters, receive, signal) {
  if (report) return receive(report.run);
  const response = await request(path, parameters, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) receive(JSON.parse(event.slice(event.indexOf(":") + 1)));
  }
}

// A report has what the server answers, and a sample of the rows, which is filtered by text here.
function answer(path, parameters) {
  const what = path.startsWith("d/") ? path.slice(path.lastIndexOf("/") + 1) : path;
  if (what === "rows") {
    const wanted = (parameters.text || "").toLowerCase();
    let rows = report.rows.rows.map((cells, at) => [report.rows.numbers[at], cells]);
    if (wanted) rows = rows.filter(([, cells]) => JSON.stringify(cells).toLowerCase().includes(wanted));
    const at = report.overview.columns.findIndex((column) => column.name === parameters.sort);
    if (at >= 0) rows.sort(([, one], [, other]) => (one[at] < other[at] ? -1 : one[at] > other[at] ? 1 : 0) * (parameters.descending ? -1 : 1));
    const offset = Number(parameters.offset || 0);
    const page = rows.slice(offset, offset + Number(parameters.limit || 50));
    return { total: rows.length, of: rows.length, done: true, offset, open: {}, numbers: page.map(([number]) => number), rows: page.map(([, cells]) => cells) };
  }
  if (what === "row") {
    const at = report.rows.numbers.indexOf(Number(parameters.number));
    if (at < 0) throw new Failure(404, { error: "this row is not in the sample of this report" });
    const next = (step) => report.rows.numbers[at + step] ?? null;
    return { number: report.rows.numbers[at], total: report.overview.rows, cells: report.rows.rows[at], prompts: {}, previous: next(-1), next: next(1) };
  }
  if (!(what in report)) throw new Failure(404, { error: "this is not in a report" });
  return report[what];
}
