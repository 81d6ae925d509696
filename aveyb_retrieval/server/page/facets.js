// Values of the fields that the hits have, with the number of documents that have them: each a button that filters.

import { search } from "./api.js";
import { currentFilter, filterBy, path } from "./filters.js";
import { element, webAddress, written } from "./text.js";

const FIELDS = 6;
const VALUES = 8; // of each field, at first
const LONGEST = 40; // characters of a value
const MOST_DOCUMENTS = 200_000; // of an index: counting those of a larger one takes long
const ONE_FOR_EACH = ["path", "modified", "url"]; // of files: they tell one document from the others
const wide = matchMedia("(min-width: 1256px)"); // as in style.css: then they stand beside the hits
const byId = (id) => document.getElementById(id);

const uncounted = new Set(); // indexes whose values cannot be counted
let shown = ""; // what was asked for, for which the values on the page stand

export function hideFacets() {
  shown = "";
  byId("facets").hidden = true;
}

// Counts the values of the fields of these hits among the documents that the filter lets through and that hold words of
// the query.
export async function showFacets({ name, scope, documents }, hits, { query, operators }) {
  const lists = new Map(); // field -> whether its values are items of lists
  for (const [field, value] of hits.flatMap((hit) => Object.entries(hit.metadata))) {
    if (isShort(Array.isArray(value) ? value[0] : value) && !ONE_FOR_EACH.includes(field)) {
      if (lists.size < FIELDS || lists.has(field)) lists.set(field, lists.get(field) || Array.isArray(value));
    }
  }
  const filter = currentFilter();
  const wanted = JSON.stringify([name, query, operators, filter, [...lists]]);
  if (wanted === shown) return;
  if (lists.size === 0 || documents > MOST_DOCUMENTS || uncounted.has(name)) return hideFacets();
  const facets = [...lists.keys()].map(path);
  shown = wanted;
  let counted = null;
  try {
    counted = await search({ ...scope, query, operators, mode: "lexical", k: 1, filter, facets, facets_of: "found" });
  } catch (error) {
    if (error.status === 422) uncounted.add(name); // an engine, or a field of too many values
  }
  if (wanted !== shown) return; // another search has been shown meanwhile
  const groups = [...lists].flatMap(([field, list]) => draw(field, list, counted?.facets[path(field)] ?? []));
  byId("facet-fields").replaceChildren(...groups);
  byId("facets").hidden = groups.length === 0;
}

function isShort(value) {
  if (typeof value === "string") return value.length <= LONGEST && webAddress(value) === null;
  return ["number", "boolean"].includes(typeof value);
}

// A field whose values all differ, or that has one only, narrows nothing down.
function draw(field, list, counted) {
  const values = counted.filter(({ value }) => isShort(value));
  if (values.length < 2 || values[0].count < 2) return [];
  const group = element("div", "facet", "");
  const buttons = element("ul", "", "");
  buttons.setAttribute("aria-label", field);
  buttons.append(...values.map((each) => drawValue(field, list, each)));
  group.append(written("p", "", field), buttons);
  if (values.length > VALUES) group.append(moreButton(buttons));
  return [group];
}

function drawValue(field, list, { value, count }) {
  const item = document.createElement("li");
  const button = Object.assign(document.createElement("button"), { type: "button" });
  const number = element("span", "count", count.toLocaleString("en"));
  number.append(element("span", "hidden", count === 1 ? " document" : " documents"));
  button.append(written("bdi", "", String(value)), " ", number);
  button.addEventListener("click", () => {
    filterBy({ [path(field)]: list ? { $contains: value } : value });
    byId("results").focus({ preventScroll: true }); // the button is gone when the hits come
  });
  item.append(button);
  return item;
}

function moreButton(list) {
  const rest = [...list.children].slice(VALUES);
  for (const item of rest) item.hidden = true;
  const button = Object.assign(element("button", "", `${rest.length} more`), { type: "button" });
  button.addEventListener("click", () => {
    for (const item of rest) item.hidden = false;
    rest[0].querySelector("button").focus();
    button.remove();
  });
  return button;
}

function place() {
  byId("facets").open = wide.matches;
}
wide.addEventListener("change", place);
place();
