// The page: its address says what is shown, so that a search can be sent to somebody, and Back goes back.

import { Problem, fetchIndexes, hasKey, keepKey, search } from "./api.js";
import { hideFacets, showFacets } from "./facets.js";
import { currentFilter, metadataChips, onFilterChange, readFilter, setFilter } from "./filters.js";
import { closeReader, openReader, showInReader } from "./reader.js";
import { element, markedSentence, pageName, snippet, unitSpans, unsigned, written as writtenText } from "./text.js";

const ALL = "*"; // as the index in the address: all of them, in one ranking
const HITS = 10;
const PASSAGES = 3; // of each document
// Of answers with a confidence, about this share are right: docs/ranking.md.
const BANDS = [[0.7, "fits well"], [0.3, "may fit"], [0, "fits poorly"]];
const OWN_ARROWS = "select, #text, #filter-editor, [type=radio], [type=checkbox]"; // where arrows have a meaning already
const byId = (id) => document.getElementById(id);

const NO_DOCUMENT = { doc: null, at: null, of: null };

let server = null; // what /indexes said
let asked = ""; // the search that is on the page
let answer = null;
let running = null;

// --- the address ---------------------------------------------------------------------------------------------------

function address() {
  return new URLSearchParams(location.search);
}

function written(changes) {
  const fields = address();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") fields.delete(name);
    else fields.set(name, value);
  }
  return `?${fields}`;
}

function go(changes) {
  const next = written(changes);
  if (next !== location.search) history.pushState(null, "", next);
  return show();
}

// A search as the form has it; it begins on the first page, with no document open.
function goSearch() {
  if (server === null) return show(); // it has not answered yet, or wants a key
  const filter = currentFilter();
  return go({
    query: byId("query").value.trim(),
    index: server.indexes.length > 1 ? byId("index").value : null,
    unit: document.querySelector("[name=unit]:checked").value === "passage" ? "passage" : null,
    mode: byId("mode").value === "hybrid" ? null : byId("mode").value,
    operators: byId("operators").checked ? "true" : null,
    filter: filter ? JSON.stringify(filter) : null,
    offset: null,
    ...NO_DOCUMENT,
  });
}

// --- searching -----------------------------------------------------------------------------------------------------

// What an address searches in: its name, how a request says it, and how many documents it has.
function chosenIndex(wanted) {
  const name = wanted.get("index");
  const all = server.indexes;
  if (name === ALL && all.length > 1) {
    const documents = all.reduce((sum, index) => sum + index.documents, 0);
    return { name: "All indexes", value: ALL, scope: { indexes: all.map((index) => index.name) }, documents };
  }
  const one = all.find((index) => index.name === name) ?? all[0];
  return { name: one.name, value: one.name, scope: { index: name ?? one.name }, documents: one.documents };
}

function fieldsOf(wanted) {
  const unit = wanted.get("unit") === "passage" ? "passage" : "document";
  return {
    query: wanted.get("query"),
    ...chosenIndex(wanted).scope,
    unit,
    mode: wanted.get("mode") ?? "hybrid",
    operators: wanted.get("operators") === "true",
    filter: readFilter(wanted.get("filter")),
    offset: Number(wanted.get("offset") ?? 0),
    k: HITS,
    ...(unit === "document" ? { passages: PASSAGES } : {}),
  };
}

async function show() {
  try {
    server ??= await fetchIndexes();
    fillForm();
    await showHits();
    await showDocument();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 401) askForKey();
    else complain(error);
  }
}

function fillForm() {
  const wanted = address();
  byId("index-choice").hidden = server.indexes.length < 2;
  const options = server.indexes.map(({ name }) => new Option(name, name));
  byId("index").replaceChildren(...options, new Option("all indexes", ALL));
  const chosen = chosenIndex(wanted);
  byId("index").value = chosen.value;
  const count = chosen.documents.toLocaleString("en");
  byId("name").textContent = chosen.name;
  byId("size").textContent = `${count} ${chosen.documents === 1 ? "document" : "documents"}`;
  byId("query").value = wanted.get("query") ?? "";
  byId("mode").value = wanted.get("mode") ?? "hybrid";
  byId("operators").checked = wanted.get("operators") === "true";
  const unit = wanted.get("unit") === "passage" ? "passage" : "document";
  document.querySelector(`[name=unit][value=${unit}]`).checked = true;
  document.body.classList.toggle("fresh", !wanted.get("query") && wanted.get("doc") === null);
  document.title = wanted.get("query") ? `${wanted.get("query")} – ${chosen.name}` : `Search ${chosen.name}`;
  setFilter(wanted.get("filter"));
}

async function showHits() {
  const wanted = address();
  running?.abort();
  byId("problem").hidden = true;
  if (!wanted.get("query")) {
    answer = null;
    byId("unsure").hidden = true;
    byId("meant").hidden = true;
    asked = "";
    byId("summary").textContent = "";
    byId("hits").replaceChildren();
    byId("pages").hidden = true;
    hideFacets();
    return;
  }
  const fields = fieldsOf(wanted);
  if (JSON.stringify(fields) === asked) return;
  asked = ""; // until its answer is there: Back asks again
  running = new AbortController();
  const waiting = setTimeout(() => (byId("summary").textContent = "Searching…"), 200);
  const began = performance.now();
  try {
    answer = await search(fields, running.signal);
  } finally {
    clearTimeout(waiting);
  }
  asked = JSON.stringify(fields);
  drawHits(fields, performance.now() - began);
  showFacets(chosenIndex(wanted), answer.hits, fields);
}

function drawHits(fields, milliseconds) {
  const { hits, next } = answer;
  const kind = fields.unit === "passage" ? "passages" : "documents";
  const range = `${fields.offset + 1} to ${fields.offset + hits.length}`;
  const took = `${Math.max(1, Math.round(milliseconds)).toLocaleString("en")} ms`;
  byId("summary").textContent = hits.length === 0 ? `No ${kind} found.` : `The best ${kind}, ${range}, in ${took}`;
  const best = hits[0]?.confidence ?? 1;
  byId("unsure").hidden = fields.offset > 0 || best >= BANDS[1][0];
  byId("unsure").textContent = "Nothing fits well. These come nearest.";
  drawMeant(fields.query);
  byId("hits").start = fields.offset + 1;
  byId("hits").replaceChildren(...hits.map((hit) => drawHit(hit, fields.mode === "hybrid")));
  byId("pages").hidden = fields.offset === 0 && next === null;
  byId("previous").disabled = fields.offset === 0;
  byId("next").disabled = next === null;
  byId("page-number").textContent = `Page ${Math.floor(fields.offset / HITS) + 1}`;
}

// What nothing fulfills, and words that may be meant in place of those that no document has: each a search of its own.
function drawMeant(query) {
  const parts = answer.unmet.map((condition) => `Nothing has ${condition}. `);
  for (const [word, meant] of Object.entries(answer.suggestions)) {
    parts.push(`No document has “${word}”. Did you mean `);
    for (const [place, other] of meant.entries()) {
      const link = element("a", "", other);
      link.href = written({ query: query.replaceAll(word, () => other), offset: null, ...NO_DOCUMENT });
      parts.push(place ? " or " : "", link);
    }
    parts.push("? ");
  }
  byId("meant").hidden = parts.length === 0;
  byId("meant").replaceChildren(...parts);
}

function drawHit(hit, sure) {
  const item = document.createElement("li");
  item.dataset.id = hit.id;
  item.dataset.of = hit.index ?? "";
  item.dataset.at = hit.span ? hit.span[0] : "";
  const title = writtenText("h2", "", "");
  title.append(passageLink(hit, hit.span, hit.title || hit.id));
  item.append(title, drawPlace(hit, sure));
  if (hit.passage) item.append(drawSnippet(hit));
  const others = hit.passages.slice(1).filter((passage) => passage.span[1] > passage.span[0]);
  if (others.length > 0) item.append(drawOthers(hit, others));
  if (hit.duplicates.length > 0) item.append(element("p", "also", `The same in ${hit.duplicates.join(", ")}`));
  if (hit.earlier.length > 0) item.append(element("p", "also", `Older in ${hit.earlier.join(", ")}`));
  item.append(metadataChips(hit.metadata));
  return item;
}

function drawSnippet({ passage, span, highlights, best_sentence: best }) {
  const text = writtenText("p", "snippet", "");
  const marks = unitSpans(passage, span[0], highlights);
  const [sentence] = unitSpans(passage, span[0], best ? [best] : []);
  const [from, to] = snippet(passage, marks, sentence);
  const plain = unsigned(passage);
  text.append(from > 0 ? "… " : "", markedSentence(plain, from, to, marks, sentence), to < passage.length ? " …" : "");
  return text;
}

// With `sure`: and how well it fits.
function drawPlace(hit, sure) {
  const place = element("p", "place", "");
  const page = pageName(hit);
  const heading = [hit.title, page].some((other) => other.toLowerCase() === hit.heading.toLowerCase()) ? "" : hit.heading;
  const parts = [day(hit.date), hit.author, hit.index, heading, page, hit.title && hit.id];
  for (const part of parts.filter(Boolean)) place.append(writtenText("span", "", part));
  if (hit.confidence !== null) {
    const [, words] = BANDS.find(([least]) => hit.confidence >= least);
    const fit = element("span", "", words);
    fit.title = `The estimated probability that this passage answers the query: ${Math.round(100 * hit.confidence)} %`;
    place.append(fit);
  } else if (sure && hit.passage) {
    const fit = element("span", "", "fit unknown");
    fit.title = "There are too few documents to tell how well one answers";
    place.append(fit);
  }
  return place;
}

// A date without what nobody reads of it, such as its zone.
function day(date) {
  return date?.replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*$/, "$1 $2") ?? "";
}

function drawOthers(hit, others) {
  const also = element("p", "also", "Also at");
  for (const passage of others) {
    const words = passage.text.replace(/\s+/g, " ").trim().split(" ").slice(0, 5).join(" ");
    also.append(passageLink(hit, passage.span, passage.heading || `${words} …`));
  }
  return also;
}

function passageLink(hit, span, text) {
  const link = document.createElement("a");
  const place = { doc: hit.id, at: span ? String(span[0]) : null, of: hit.index };
  link.href = written(place);
  link.textContent = text;
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(place);
  });
  return link;
}

// --- the document --------------------------------------------------------------------------------------------------

let reading = "";

async function showDocument() {
  const wanted = address();
  const id = wanted.get("doc");
  const at = Number(wanted.get("at") ?? 0);
  const of = wanted.get("of") ?? ""; // its index, where several are searched
  const key = id === null ? "" : JSON.stringify([wanted.get("index"), of, id, at, asked]);
  if (key === reading) return;
  reading = key;
  for (const item of byId("hits").children) item.classList.remove("open");
  if (id === null) {
    closeReader();
    return;
  }
  // none: a link to the document alone
  const hits = (answer?.hits ?? []).filter((hit) => hit.id === id && (hit.index ?? "") === of);
  const hit = hits.find((found) => found.passages.some((passage) => passage.span[0] === at)) ??
    hits[0] ?? { id, title: "", passages: [], highlights: [], best_sentence: null };
  const items = [...byId("hits").children].filter(({ dataset }) => dataset.id === id && dataset.of === of);
  (items.find((item) => item.dataset.at === String(at)) ?? items[0])?.classList.add("open");
  const index = of || (chosenIndex(wanted).scope.index ?? server.indexes[0].name);
  try {
    const given = wanted.get("at") !== null;
    await openReader({ index, hit, current: given ? at : null });
  } catch (error) {
    if (error.status === 401) throw error;
    showInReader(error.message);
  }
}

async function close() {
  const [id, of] = [address().get("doc"), address().get("of") ?? ""];
  if (id === null) return;
  await go(NO_DOCUMENT);
  const items = [...byId("hits").children];
  const link = items.find(({ dataset }) => dataset.id === id && dataset.of === of)?.querySelector("a");
  (link ?? byId("query")).focus();
}

// --- keys, errors --------------------------------------------------------------------------------------------------

function askForKey() {
  byId("key-wrong").hidden = !hasKey();
  byId("key-dialog").showModal();
}

function complain(error) {
  asked = "";
  byId("summary").textContent = "";
  byId("unsure").hidden = true;
  byId("hits").replaceChildren();
  byId("pages").hidden = true;
  hideFacets();
  byId("problem").hidden = false;
  byId("problem").textContent = error.message;
  if (!(error instanceof Problem)) throw error;
}

byId("key-form").addEventListener("submit", () => {
  keepKey(byId("key").value);
  byId("key").value = "";
  show();
});
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  goSearch();
  byId("query").blur();
});
for (const choice of document.querySelectorAll("#index, #mode, #operators, [name=unit]")) {
  choice.addEventListener("change", goSearch);
}
onFilterChange(goSearch);
byId("close").addEventListener("click", close);

function turnPage(offset) {
  go({ offset: offset || null, ...NO_DOCUMENT });
  byId("results").focus({ preventScroll: true });
  window.scrollTo(0, 0);
}
byId("next").addEventListener("click", () => turnPage(Number(address().get("offset")) + HITS));
byId("previous").addEventListener("click", () => turnPage(Math.max(0, Number(address().get("offset")) - HITS)));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("key-dialog").open) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") close();
  else if (event.key === "/" && !typing) {
    event.preventDefault();
    byId("query").select();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && !event.target.closest(OWN_ARROWS)) {
    const links = [...document.querySelectorAll("#hits h2 a")];
    if (links.length === 0) return;
    const from = links.indexOf(document.activeElement);
    const to = event.key === "ArrowDown" ? from + 1 : from - 1;
    event.preventDefault();
    if (to < 0) byId("query").focus();
    else links[Math.min(to, links.length - 1)].focus();
  }
});
window.addEventListener("popstate", show);
show();
