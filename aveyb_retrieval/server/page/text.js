// Texts as nodes: what comes from a document is only ever the content of a text node, never markup.

const FENCE = /^\s*(```|~~~)/;
const ALIGNED = /^\s|^\||\S {2,}\S/; // indented, of a table, or in columns
const PROSE = /^(?!```|\d+[.)]|\* )[\p{L}\p{N}([{"'“‘`*]/u;
// Signs of Markdown around headings and listings, which readers of files write: they are not shown.
const SIGNS = /^[ \t]*#{1,6}[ \t]+|[ \t]+#+[ \t]*$|^[ \t]*(?:`{3,}|~{3,})[^\n`]*$/gm;
const HIDDEN = "\0"; // stands for a sign, so that offsets stay
const SNIPPET = 420; // UTF-16 units of a passage that a list shows

export function element(tag, className, text) {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}

// Text of a document, in the direction of its own language.
export function written(tag, className, text) {
  return Object.assign(element(tag, className, text), { dir: "auto" });
}

// A text whose signs of Markdown will not be shown; its length stays.
export function unsigned(text) {
  return text.replace(SIGNS, (signs) => HIDDEN.repeat(signs.length));
}

function shown(text) {
  return text.replaceAll(HIDDEN, "");
}

// The units [from, to) of a text as nodes, with marks: [start, stop) in units, ascending.
export function marked(text, from, to, marks) {
  const nodes = document.createDocumentFragment();
  let end = from;
  for (const [start, stop] of marks) {
    if (start < end || stop > to) continue;
    nodes.append(shown(text.slice(end, start)), element("mark", "", shown(text.slice(start, stop))));
    end = stop;
  }
  nodes.append(shown(text.slice(end, to)));
  return nodes;
}

// The same, with the sentence [start, stop) of the text as a mark around its words; null: none.
export function markedSentence(text, from, to, marks, sentence) {
  const [start, stop] = (sentence ?? [to, to]).map((at) => Math.min(Math.max(at, from), to));
  const nodes = marked(text, from, start, marks);
  if (start < stop) {
    const best = element("mark", "sentence", "");
    best.append(marked(text, start, stop, marks));
    nodes.append(best, marked(text, stop, to, marks));
  }
  return nodes;
}

// The units of a passage that a list shows, cut between words: of a long one the best sentence, from its first mark on
// where that is long.
export function snippet(text, marks, sentence) {
  if (text.length <= SNIPPET) return [0, text.length];
  const [start, stop] = sentence ?? [0, 0];
  const best = stop - start < SNIPPET - 60 ? start : (marks.find(([at]) => at >= start)?.[0] ?? start);
  let from = Math.min(Math.max(0, best - 60), text.length - SNIPPET);
  let to = from + SNIPPET;
  if (from > 0) from = text.indexOf(" ", from) + 1;
  if (to < text.length) to = Math.max(text.lastIndexOf(" ", to), from);
  return [from, to];
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

// Those of some spans of a document that begin in a part of it, from a character on, as units of the part.
export function unitSpans(text, first, spans) {
  return spans
    .filter(([start]) => start >= first)
    .map((span) => span.map((at) => unitOffset(text, at - first)))
    .filter(([start, stop]) => start < stop);
}

// What a document calls the page of a hit or passage, and its number where that differs; "" where there are none.
export function pageName({ page, page_label: label, page_unit: unit = "page" }) {
  if (page === undefined || page === null) return "";
  if (unit === "file" && label === String(page)) return ""; // the text of a mail
  if (unit !== "page") return `${unit} ${label}`;
  return label && label !== String(page) ? `page ${label} (${page})` : `page ${page}`;
}
