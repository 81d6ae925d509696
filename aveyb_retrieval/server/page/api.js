// Requests to this server. A key, if one is needed, is kept until the tab is closed.

const KEY = "aveyb-key";

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer.");
  }
  if (!response.ok) throw new Problem(response.status, (await response.json()).error);
  return response;
}

async function ask(path, options) {
  return (await request(path, options)).json();
}

export function fetchIndexes() {
  return ask("indexes");
}

export function search(fields, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask("search", { method: "POST", headers, body: JSON.stringify(fields), signal });
}

export function fetchText(index, id, start, stop) {
  const range = new URLSearchParams({ index, start, stop });
  return ask(`documents/${encodeURIComponent(id)}?${range}`);
}

export async function fetchPage(index, id, page, [start, stop]) {
  const place = new URLSearchParams({ index, page, start, stop });
  return (await request(`pages/${encodeURIComponent(id)}?${place}`)).blob();
}

export async function fetchOriginal(index, id) {
  const response = await request(`originals/${encodeURIComponent(id)}?${new URLSearchParams({ index })}`);
  return response.blob();
}
