// The document beside the hits: a window of its text around the passage, with every found passage highlighted.

import { fetchOriginal, fetchPage, fetchText } from "./api.js";
import { element, markedSentence, pageName, reflowed, unitOffset, unitSpans, unsigned, webAddress, webLink, written } from "./text.js";

const AROUND = 40_000; // characters that are fetched before and after the passage
const byId = (id) => document.getElementById(id);

const covering = matchMedia("(max-width: 999px)"); // then the document lies over everything else

let opened = 0; // counts, so that an answer that comes late is not shown
let shown = null; // {index, id, passages, current, highlights, best, window}

export async function openReader({ index, hit, current }) {
  const ticket = ++opened;
  const passages = hit.passages.filter((passage) => passage.span[1] > passage.span[0]);
  const found = passages.findIndex((passage) => passage.span[0] === current);
  const at = passages[Math.max(0, found)]?.span[0] ?? current ?? 0;
  const best = hit.best_sentence ? [hit.best_sentence] : [];
  shown = { index, id: hit.id, passages, current: Math.max(0, found), highlights: hit.highlights, best };
  byId("reader").hidden = false;
  document.body.classList.add("reading");
  setBackground();
  byId("reader-title").textContent = hit.title || hit.id;
  byId("about").hidden = true;
  byId("original").hidden = true;
  byId("paper").hidden = true;
  turnTo("text");
  byId("text").replaceChildren("Opening…");
  describePassage();
  byId("reader-title").focus({ preventScroll: true });
  const start = Math.max(0, at - AROUND);
  const part = await fetchText(index, hit.id, start, start + 2 * AROUND);
  if (ticket !== opened) return;
  shown.window = part;
  const changed = passages.some((passage) => !stands(part, passage));
  if (changed) {
    passages.length = 0;
    Object.assign(shown, { current: 0, highlights: [], best: [] });
    describePassage();
    byId("reader-place").replaceChildren(element("span", "", "It has changed since it was found"));
  }
  if (passages.length === 0 && current !== null) passages.push(paragraphAt(part, at));
  byId("reader-title").textContent = part.title || hit.id;
  describeDocument(part.metadata);
  byId("original").hidden = !part.original;
  byId("paper").hidden = !part.original || !hit.id.toLowerCase().endsWith(".pdf") || passages.every(({ page }) => !page);
  draw();
  scrollToPassage();
}

// Whether a passage is where the search found it, as far as a part of the text shows.
function stands(part, { span: [start, stop], text }) {
  const [first, last] = part.span;
  if (start < first || stop > last) return stop <= part.length;
  return part.text.slice(unitOffset(part.text, start - first), unitOffset(part.text, stop - first)) === text;
}

// Where no search says which passage is meant: from a character to the end of its paragraph.
function paragraphAt({ text, span: [start] }, at) {
  const from = unitOffset(text, at - start);
  const end = text.indexOf("\n\n", from);
  const length = [...text.slice(from, end < 0 ? text.length : end)].length;
  return { span: [at, at + length], heading: "" };
}

function describeDocument(metadata) {
  const fields = Object.entries(metadata).filter(([, value]) => value !== null);
  byId("about").hidden = fields.length === 0;
  byId("metadata").replaceChildren(
    ...fields.flatMap(([field, value]) => {
      const shownValue = written("dd", "", "");
      const address = webAddress(value);
      const text = typeof value === "string" ? value : JSON.stringify(value);
      const list = Array.isArray(value) && value.every((each) => typeof each !== "object");
      shownValue.append(address === null ? (list ? value.join(", ") : text) : webLink(address, address));
      return [written("dt", "", field), shownValue];
    }),
  );
}

// Shows why a document cannot be read in place of its text.
export function showInReader(message) {
  byId("text").replaceChildren(message);
}

export function closeReader() {
  opened++;
  shown = null;
  byId("reader").hidden = true;
  document.body.classList.remove("reading");
  setBackground();
}

// What lies under the document cannot be reached meanwhile.
function setBackground() {
  for (const part of document.querySelectorAll("header, #results")) part.inert = covering.matches && shown !== null;
}
covering.addEventListener("change", setBackground);

function draw() {
  const { window: part, passages, current, highlights, best } = shown;
  const [start, stop] = part.span;
  const text = unsigned(reflowed(part.text));
  const inside = passages
    .map((passage, number) => ({ from: passage.span[0] - start, to: passage.span[1] - start, number }))
    .filter(({ from, to }) => to > 0 && from < stop - start)
    .sort((a, b) => a.from - b.from);
  const marks = unitSpans(part.text, start, highlights);
  const [sentence] = unitSpans(part.text, start, best);
  const nodes = [];
  let end = 0;
  for (const { from, to, number } of inside) {
    const first = Math.max(end, unitOffset(part.text, Math.max(0, from)));
    const last = unitOffset(part.text, to);
    if (last <= first) continue; // it overlaps the one before
    const passage = written("div", number === current ? "passage current" : "passage", "");
    passage.dataset.page = pageName(passages[number]);
    const body = text.slice(first, last).trimEnd();
    const lead = body.match(/^\n*/)[0].length;
    passage.append(markedSentence(text, first + lead, first + body.length, marks, sentence));
    nodes.push(between(text.slice(end, first), end > 0, true), passage);
    end = last;
  }
  nodes.push(between(text.slice(end), end > 0, false));
  if (start > 0) nodes.unshift(moreButton("Show the text before", Math.max(0, start - AROUND), start));
  if (stop < part.length) nodes.push(moreButton("Show the text after", stop, stop + AROUND));
  byId("text").replaceChildren(...nodes);
}

// Text beside passages, which bring their own distance to it.
function between(text, passageBefore, passageAfter) {
  const cut = passageBefore ? text.replace(/^\s*\n/, "") : text;
  return (passageAfter ? cut.trimEnd() : cut).replaceAll("\0", "");
}

function moreButton(label, from, to) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "more";
  button.textContent = label;
  button.addEventListener("click", async () => {
    const ticket = opened;
    button.disabled = true;
    const part = await fetchText(shown.index, shown.id, from, to);
    if (ticket !== opened) return;
    const box = byId("text");
    const before = from < shown.window.span[0];
    const below = box.scrollHeight - box.scrollTop;
    const old = shown.window;
    shown.window = before
      ? { ...old, text: part.text + old.text, span: [part.span[0], old.span[1]] }
      : { ...old, text: old.text + part.text, span: [old.span[0], part.span[1]] };
    draw();
    if (before) box.scrollTop = box.scrollHeight - below; // what was read stays where it was
    box.focus({ preventScroll: true });
  });
  return button;
}

function describePassage() {
  const { passages, current } = shown;
  const passage = passages[current];
  const place = passage ? [passage.heading, pageName(passage)].filter(Boolean) : [];
  byId("reader-place").replaceChildren(...place.map((text) => element("span", "", text)));
  byId("passage-steps").hidden = passages.length < 2;
  byId("passage-number").textContent = `passage ${current + 1} of ${passages.length}`;
}

function scrollToPassage() {
  const passage = byId("text").querySelector(".current");
  if (passage === null) {
    byId("text").scrollTop = 0;
    return;
  }
  const box = byId("text");
  box.scrollTop += passage.getClientRects()[0].top - box.getBoundingClientRect().top - box.clientHeight / 4;
}

async function step(by) {
  const count = shown.passages.length;
  shown.current = (shown.current + by + count) % count;
  describePassage();
  const [start, stop] = shown.passages[shown.current].span;
  if (start < shown.window.span[0] || stop > shown.window.span[1]) {
    const ticket = opened;
    const from = Math.max(0, start - AROUND);
    const part = await fetchText(shown.index, shown.id, from, from + 2 * AROUND);
    if (ticket !== opened) return;
    shown.window = part;
  }
  draw();
  scrollToPassage();
  if (!byId("sheet").hidden) await showPage();
}

// Shows the text of the document, or the page of its original.
function turnTo(part) {
  byId("text").hidden = part !== "text";
  byId("sheet").hidden = part !== "sheet";
  byId("paper").firstElementChild.setAttribute("aria-pressed", part === "sheet");
}

// Shows the page that the passage is on, with the passage marked; an address of a picture cannot send the key.
async function showPage() {
  const { index, id, passages, current } = shown;
  const { page, span } = passages[current];
  const ticket = opened;
  try {
    const picture = await createImageBitmap(await fetchPage(index, id, page, span));
    if (ticket !== opened) return;
    const canvas = byId("sheet").firstElementChild;
    Object.assign(canvas, { width: picture.width, height: picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0);
    canvas.setAttribute("aria-label", `Page ${page}, with the passage marked`);
    turnTo("sheet");
  } catch (error) {
    byId("reader-place").textContent = error.message;
  }
}

byId("paper").addEventListener("click", async () => {
  if (byId("sheet").hidden) return showPage();
  turnTo("text");
  scrollToPassage();
});

// Keeps the file that the document was read from; a link cannot send the key that may be needed.
async function keepOriginal() {
  const { index, id } = shown;
  try {
    const link = Object.assign(document.createElement("a"), { download: id.split("/").pop() });
    link.href = URL.createObjectURL(await fetchOriginal(index, id));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  } catch (error) {
    byId("reader-place").textContent = error.message;
  }
}

byId("original").addEventListener("click", keepOriginal);
byId("passage-before").addEventListener("click", () => step(-1));
byId("passage-after").addEventListener("click", () => step(1));
