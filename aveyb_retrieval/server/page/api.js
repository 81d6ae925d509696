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

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer.");
  }
  const content = await response.json();
  if (!response.ok) throw new Problem(response.status, content.error);
  return content;
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
