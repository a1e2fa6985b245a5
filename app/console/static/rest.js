// Requests to the gateway as whoever has signed in: the REST API and the MCP endpoints, behind /console/-.

// What a proxy in front of the gateway strips from addresses; the path of PUBLIC_URL.
export const base = document.documentElement.dataset.base;

export class Problem extends Error {
  // What REST answers where it refuses (RFC 9457).
  constructor(status, body) {
    super(body.detail || body.title || `HTTP ${status}`);
    this.status = status;
    this.body = body;
  }
}

export function send(path, init = {}) {
  const headers = { "X-CSRF-Token": document.body.dataset.csrf, ...init.headers };
  return fetch(base + "/console/-" + path, { ...init, headers, credentials: "same-origin", redirect: "error" });
}

// JSON there and back; `path` is below /api/v1. Throws Problem; TypeError where the gateway cannot be reached.
export async function rest(method, path, body) {
  const init = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const response = await send("/api/v1" + path, init);
  const text = await response.text();
  let answer = {};
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    answer = { title: "The answer is no JSON" };
  }
  if (!response.ok) throw new Problem(response.status, answer);
  return answer;
}

export function wordsOf(error) {
  if (!(error instanceof Problem)) return "The gateway cannot be reached.";
  const hint = error.body.hint ? " " + error.body.hint : "";
  return error.message + hint;
}
