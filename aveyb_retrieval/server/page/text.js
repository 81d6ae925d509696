// Texts as nodes: what comes from a document is only ever the content of a text node, never markup.

const FENCE = /^\s*(```|~~~)/;
const ALIGNED = /^\s|^\||\S {2,}\S/; // indented, of a table, or in columns
const PROSE = /^(?!```|\d+[.)]|\* )[\p{L}\p{N}([{"'“‘`*]/u;
const SNIPPET = 420; // UTF-16 units of a passage that a list shows

// Finds the words that begin as one of the query's does, since endings differ by grammar; null where there are none.
export function wordPattern(words) {
  const stems = words.map((word) => [...word]).map((letters) => letters.slice(0, Math.max(4, letters.length - 3)));
  if (stems.length === 0) return null;
  const parts = stems.map((letters) => letters.join("").replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  const begin = parts.every((part) => /^[\x00-\x7f]+$/.test(part)) ? "(?<![\\p{L}\\p{N}])" : "";
  return new RegExp(`${begin}(?:${parts.join("|")})[\\p{L}\\p{N}]*`, "giu");
}

export function element(tag, className, text) {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}

// Text of a document, in the direction of its own language.
export function written(tag, className, text) {
  return Object.assign(element(tag, className, text), { dir: "auto" });
}

export function marked(text, pattern) {
  const nodes = document.createDocumentFragment();
  let end = 0;
  for (const match of pattern ? text.matchAll(pattern) : []) {
    nodes.append(text.slice(end, match.index), element("mark", "", match[0]));
    end = match.index + match[0].length;
  }
  nodes.append(text.slice(end));
  return nodes;
}

// The part of a passage that holds the most different words, cut between words.
export function snippet(text, pattern) {
  const line = text.replace(/\s+/g, " ").trim();
  if (line.length <= SNIPPET) return line;
  const matches = pattern ? [...line.matchAll(pattern)] : [];
  const found = matches.map((match) => ({ at: match.index, word: match[0].slice(0, 4).toLowerCase() }));
  let best = 0;
  let most = 0;
  for (const first of found) {
    const words = new Set(found.filter((m) => m.at >= first.at && m.at < first.at + SNIPPET - 60).map((m) => m.word));
    if (words.size > most) [best, most] = [first.at, words.size];
  }
  let start = Math.min(Math.max(0, best - 60), line.length - SNIPPET);
  let stop = start + SNIPPET;
  if (start > 0) start = line.indexOf(" ", start) + 1;
  if (stop < line.length) stop = line.lastIndexOf(" ", stop);
  return `${start > 0 ? "… " : ""}${line.slice(start, stop)}${stop < line.length ? " …" : ""}`;
}

// Lets prose that was broken into lines of a fixed width flow again; code, tables and lists stay as they are. The length
// of the text stays too, and so do offsets into it.
export function reflowed(text) {
  const lines = text.split("\n");
  let code = false;
  let out = lines[0];
  for (let i = 1; i < lines.length; i++) {
    if (FENCE.test(lines[i - 1])) code = !code;
    const wrapped = !code && lines[i - 1].length >= 60 && !ALIGNED.test(lines[i - 1]) && PROSE.test(lines[i]);
    out += (wrapped ? " " : "\n") + lines[i];
  }
  return out;
}

// What may be a link in a document's metadata: an address of the web, and nothing that a browser would run.
export function webAddress(value) {
  if (typeof value !== "string" || !/^https?:\/\/[^\s]+$/i.test(value)) return null;
  return URL.canParse(value) ? value : null;
}

export function webLink(address, text) {
  const link = document.createElement("a");
  Object.assign(link, { href: address, textContent: text, target: "_blank", rel: "noopener noreferrer" });
  return link;
}

// Offsets of the server count characters (code points); strings here count UTF-16 units.
export function unitOffset(text, characters) {
  if (!/[\ud800-\udbff]/.test(text)) return Math.min(characters, text.length);
  let units = 0;
  for (const character of text) {
    if (characters-- === 0) return units;
    units += character.length;
  }
  return units;
}

// What a document calls the page of a hit or passage, and its number where that differs; "" where there are none.
export function pageName({ page, page_label: label, page_unit: unit = "page" }) {
  if (page === undefined || page === null) return "";
  if (unit !== "page") return `${unit} ${label}`;
  return label && label !== String(page) ? `page ${label} (${page})` : `page ${page}`;
}
