// The filters: each is a condition of the server's filter language, shown as a chip that removes it.

import { Problem } from "./api.js";
import { webAddress, webLink } from "./text.js";

const SIGNS = { $eq: "is", $ne: "is not", $gt: ">", $gte: "≥", $lt: "<", $lte: "≤", $contains: "contains" };
const CHIPS = 8; // of one hit
const IN_ITS_PLACE = ["path", "modified"]; // of files: the id says the one, nobody filters by the second of the other
const byId = (id) => document.getElementById(id);

let conditions = [];
let changed = () => {};
const samples = new Map(); // field -> a value of it, as seen in hits

// `written`: the whole filter as JSON text, as in the page's address.
export function setFilter(written) {
  const filter = readFilter(written);
  const all = filter !== null && Array.isArray(filter.$and) && Object.keys(filter).length === 1;
  conditions = all ? filter.$and : filter === null ? [] : [filter];
  draw();
}

export function readFilter(written) {
  if (!written) return null;
  try {
    const filter = JSON.parse(written);
    if (filter !== null && typeof filter === "object" && !Array.isArray(filter)) return filter;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  throw new Problem(0, `The filter in the address is not a JSON object: ${written}`);
}

export function currentFilter() {
  return conditions.length > 1 ? { $and: conditions } : conditions[0] ?? null;
}

export function onFilterChange(callback) {
  changed = callback;
}

// Metadata of a hit as buttons that filter by them, addresses of the web as links; long texts are left out. Of a list
// each item is a button.
export function metadataChips(metadata) {
  const chips = document.createElement("ul");
  chips.className = "chips";
  for (const [field, value] of Object.entries(metadata)) {
    if (IN_ITS_PLACE.includes(field)) continue;
    const address = webAddress(value);
    if (address !== null) {
      const item = document.createElement("li");
      item.append(webLink(address, `${field}: ${address.length > 60 ? `${address.slice(0, 60)} …` : address}`));
      chips.append(item);
      continue;
    }
    for (const [operator, each] of Array.isArray(value) ? value.map((one) => ["$contains", one]) : [["$eq", value]]) {
      if (!["string", "number", "boolean"].includes(typeof each) || String(each).length > 40) continue;
      remember(field, each);
      if (chips.children.length >= CHIPS) continue;
      const title = `Only where ${field} ${SIGNS[operator]} ${each}`;
      const condition = { [path(field)]: operator === "$eq" ? each : { [operator]: each } };
      chips.append(chip(`${field}: ${each}`, title, () => filterBy(condition)));
    }
  }
  return chips;
}

function remember(field, value) {
  if (samples.has(field)) return;
  samples.set(field, value);
  const option = document.createElement("option");
  option.value = field;
  byId("fields").append(option);
}

// A field as filters name it.
export function path(field) {
  return field.replaceAll(".", "\\.");
}

export function filterBy(condition) {
  const written = JSON.stringify(condition);
  if (conditions.some((other) => JSON.stringify(other) === written)) return;
  conditions.push(condition);
  draw();
  changed();
}

function draw() {
  byId("filters").replaceChildren(
    ...conditions.map((condition, position) =>
      chip(`${describe(condition)} ✕`, `Remove the filter ${describe(condition)}`, () => {
        conditions.splice(position, 1);
        draw();
        changed();
      }),
    ),
  );
}

function chip(text, label, action) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.dir = "auto";
  button.textContent = text;
  button.title = label;
  button.addEventListener("click", action);
  item.append(button);
  return item;
}

function describe(condition) {
  const [[field, value] = ["$"], ...others] = Object.entries(condition ?? {});
  if (others.length > 0 || field.startsWith("$")) return JSON.stringify(condition);
  const name = field.replaceAll("\\.", ".").replace(/^\\\$/, "$");
  if (value === null || typeof value !== "object") return `${name} is ${value}`;
  const [[operator, operand] = ["$"], ...more] = Object.entries(value);
  const plain = more.length === 0 && operator in SIGNS && typeof operand !== "object";
  return plain ? `${name} ${SIGNS[operator]} ${operand}` : JSON.stringify(condition);
}

// A typed value: of the type that the field has in the hits, else a number or a truth value where it looks like one.
function typed(field, text) {
  if (typeof samples.get(field) === "string") return text;
  if (/^-?\d+(\.\d+)?$/.test(text.trim())) return Number(text);
  return { true: true, false: false }[text.trim()] ?? text;
}

byId("add-filter").addEventListener("click", () => {
  const editor = byId("filter-editor");
  editor.hidden = !editor.hidden;
  byId("add-filter").setAttribute("aria-expanded", String(!editor.hidden));
  if (!editor.hidden) byId("filter-field").focus();
});

byId("filter-editor").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("filter-field").value.trim();
  const operator = byId("filter-operator").value;
  const value = typed(field, byId("filter-value").value);
  const name = samples.has(field) ? path(field) : field;
  filterBy({ [name]: operator === "$eq" ? value : { [operator]: value } });
  byId("filter-value").value = "";
  byId("filter-field").value = "";
  byId("filter-field").focus();
});
