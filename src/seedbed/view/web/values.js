// A cell as its kind is shown: in a table on one line, on the page of its row in full.

import { blob, of, report } from "view/api.js";
import { bar, bytes, h, number } from "view/dom.js";

export function plain(cell) {
  if (cell === null || cell === undefined) return "null";
  if (typeof cell !== "object") return typeof cell === "number" ? String(cell) : String(cell);
  if ("json" in cell) return cell.json;
  if ("bytes" in cell) return cell.bytes === null ? "null" : bytes(cell.bytes);
  return `${cell.cut} …`;
}

export function parsed(cell) {
  if (cell && typeof cell === "object" && "json" in cell && !(cell.cut === true)) {
    try { return JSON.parse(cell.json); } catch { return undefined; }
  }
  return undefined;
}

// The numbers within a value of scores, as [path, number].
export function scores(value, path = "") {
  if (typeof value === "number") return [[path, value]];
  if (!value || typeof value !== "object" || Array.isArray(value)) return [];
  return Object.entries(value).flatMap(([name, each]) => scores(each, path && name === "score" ? path : path ? `${path}.${name}` : name));
}

// `address` as of `full`; without it a picture is shown as its path.
export function short(cell, column, ranges = {}, address = null) {
  if (cell === null || cell === undefined) return h("span", { class: "null" }, "null");
  if (column.shown === "image" && address && !report) return thumbnail(column, address);
  if (column.shown === "scores") {
    const found = scores(parsed(cell));
    if (found.length) return h("span", { class: "scores" }, found.slice(0, 4).map(([name, value]) => h("span", { title: `${name}: ${value}` }, h("i", {}, name), bar(share(value, ranges[`${column.name}.${name}`]), `${name} ${value}`), String(value))));
  }
  if (column.shown === "chat") {
    const turns = parsed(cell);
    if (Array.isArray(turns)) return h("span", {}, h("i", { class: "role" }, `${turns.length} messages `), String(turns[turns.length - 1]?.content ?? "").slice(0, 200));
  }
  if (column.shown === "boolean") return h("span", { class: `boolean ${cell}` }, cell ? "true" : "false");
  if (column.shown === "number") return number(cell);
  return plain(cell).replace(/\s+/g, " ");
}

const share = (value, range) => { const [low, high] = range || [0, Math.max(5, value)]; return high > low ? (value - Math.min(0, low)) / (high - Math.min(0, low)) : 1; };

// `address` is {dataset, number}: where the whole of a value can be fetched.
export function full(cell, column, ranges, address, signal) {
  if (cell === null || cell === undefined) return h("span", { class: "null" }, "null");
  const cut = typeof cell === "object" && cell.cut;
  const more = cut ? whole(column, address) : null;
  if (column.shown === "image" || column.shown === "binary") return picture(cell, column, address, signal);
  if (column.shown === "code") return [h("pre", { class: "code", tabindex: "0" }, highlight(plain(cell), column.language)), more];
  const value = parsed(cell);
  if (column.shown === "chat" && Array.isArray(value)) return messages(value);
  if (column.shown === "scores" && value !== undefined) return [h("div", { class: "scores wide" }, scores(value).map(([name, each]) => h("div", {}, h("i", {}, name), bar(share(each, ranges[`${column.name}.${name}`]), `${name} ${each}`), h("b", {}, number(each))))), fold("as JSON", tree(value))];
  if (value !== undefined && typeof value === "object" && value !== null) return [tree(value), more];
  return [h("div", { class: "text" }, plain(cell)), more];
}

// Pictures of a table by their address: they are drawn again whenever it scrolls.
const pictures = new Map();

function thumbnail(column, { dataset, number: row }) {
  const image = h("img", { class: "thumb", alt: `${column.name} of row ${row}` }), key = `${dataset}\n${column.name}\n${row}`;
  if (!pictures.has(key)) {
    pictures.set(key, blob(of(dataset, "cell"), { number: row, column: column.name }).then((found) => (found.type.startsWith("image/") ? URL.createObjectURL(found) : ""), () => ""));
    if (pictures.size > 300) {
      const [oldest, url] = pictures.entries().next().value;
      pictures.delete(oldest);
      url.then((each) => each && URL.revokeObjectURL(each));
    }
  }
  pictures.get(key).then((url) => { if (url) image.src = url; });
  return image;
}

export const fold = (label, ...content) => h("details", {}, h("summary", {}, label), content);

export function messages(list) {
  return h("ol", { class: "chat" }, list.map((turn) => h("li", { class: `turn ${["user", "assistant", "system", "tool"].includes(turn?.role) ? turn.role : "other"}` },
    h("i", { class: "role" }, String(turn?.role ?? "")), h("div", { class: "text" }, typeof turn?.content === "string" ? turn.content : JSON.stringify(turn?.content ?? turn, null, 2)))));
}

function tree(value, depth = 0) {
  if (value === null || typeof value !== "object") return h("span", { class: `json ${value === null ? "null" : typeof value}` }, typeof value === "string" ? value : String(value));
  const entries = Object.entries(value);
  if (!entries.length) return h("span", { class: "quiet" }, Array.isArray(value) ? "[]" : "{}");
  const inner = () => [h("ul", { class: "tree" }, entries.slice(0, 200).map(([name, each]) => h("li", {}, h("b", {}, name), " ", tree(each, depth + 1)))), entries.length > 200 ? h("p", { class: "quiet" }, `and ${number(entries.length - 200)} more`) : null];
  if (depth < 1) return h("div", {}, inner());
  // Deep levels are built when they are opened.
  const details = h("details", { ontoggle: () => { if (details.open && details.childElementCount === 1) details.append(...inner().filter(Boolean)); } }, h("summary", {}, Array.isArray(value) ? `${entries.length} items` : `{ ${entries.slice(0, 4).map(([name]) => name).join(", ")}${entries.length > 4 ? ", …" : ""} }`));
  return details;
}

function whole(column, { dataset, number: row }) {
  const note = h("p", { class: "quiet" }, "Only its beginning is shown. ", h("button", { type: "button", onclick: async () => {
    const found = await blob(of(dataset, "cell"), { number: row, column: column.name });
    const anchor = h("a", { href: URL.createObjectURL(found), download: `${column.name}-${row}.txt` }, "save");
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
  } }, "Save the whole value"));
  return note;
}

function picture(cell, column, { dataset, number: row }, signal) {
  const frame = h("div", { class: "picture" }, h("span", { class: "quiet" }, plain(cell)));
  blob(of(dataset, "cell"), { number: row, column: column.name }, signal).then((found) => {
    if (!found.type.startsWith("image/")) return;
    const url = URL.createObjectURL(found);
    signal.addEventListener("abort", () => URL.revokeObjectURL(url));
    frame.prepend(h("img", { src: url, alt: `${column.name} of row ${row}` }));
  }, () => {});
  return frame;
}

const WORDS = /^(?:and|as|async|await|break|case|catch|class|const|continue|def|elif|else|except|export|extends|false|finally|fn|for|from|func|function|if|impl|import|in|is|let|match|new|not|null|or|pass|private|public|raise|return|select|self|static|struct|switch|this|throw|true|try|type|use|var|where|while|with|yield|None|True|False|SELECT|FROM|WHERE|JOIN|ON|GROUP|ORDER|BY|LIMIT|INSERT|UPDATE|DELETE|CREATE|TABLE|AND|OR|NOT|NULL|AS)$/;
const TOKENS = /(\/\/[^\n]*|#[^\n]*|--[^\n]*|\/\*[\s\S]*?\*\/)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`)|(\b\d[\w.]*\b)|([A-Za-z_]\w*)/g;

function highlight(text, language = "") {
  if (text.length > 50000) return [text];
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(TOKENS)) {
    const [token, comment, string, digits, word] = found;
    // What begins a comment in one language is an operator in others.
    if (comment && ((comment.startsWith("#") && /^(c|cpp|java|js|javascript|ts|typescript|rust|go|sql)$/i.test(language)) || (comment.startsWith("--") && !/sql|lua|haskell/i.test(language)) || (comment.startsWith("//") && /python|sql|bash|sh|yaml/i.test(language)))) continue;
    const kind = comment ? "comment" : string ? "string" : digits ? "digits" : word && WORDS.test(word) ? "word" : "";
    if (!kind) continue;
    parts.push(text.slice(at, found.index), h("span", { class: kind }, token));
    at = found.index + token.length;
  }
  parts.push(text.slice(at));
  return parts;
}
