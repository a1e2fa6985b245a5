// A small MCP client: Streamable HTTP of 2025-11-25, through /console/-.

import { events } from "./events.js";
import { send } from "./rest.js";

const VERSION = "2025-11-25";

export class RpcError extends Error {
  // The error of JSON-RPC, or of HTTP, that answers a request.
  constructor(error, status) {
    super(error.message ?? `HTTP ${status}`);
    this.code = error.code;
    this.data = error.data ?? {};
  }
}

// `handlers`: asked(method, params) answers requests of the server; told(method, params) hears its notifications.
export class McpClient {
  #path;
  #handlers;
  #session = null;
  #last = 0;
  #open = new Map();
  #ends = new AbortController();

  constructor(path, handlers) {
    this.#path = path;
    this.#handlers = handlers;
  }

  async open() {
    const hello = {
      protocolVersion: VERSION,
      capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
      clientInfo: { name: "trunkline-console", title: "Trunkline's console", version: "1" },
    };
    const result = await this.request("initialize", hello);
    await this.notify("notifications/initialized");
    this.#listen();
    return result;
  }

  // `cancelled`: an AbortSignal. The call's progress is told to `progress`.
  async request(method, params = {}, { cancelled, progress } = {}) {
    const id = ++this.#last;
    const asked = progress ? { ...params, _meta: { ...params._meta, progressToken: id } } : params;
    const answer = new Promise((resolve, reject) => this.#open.set(id, { resolve, reject, progress }));
    answer.catch(() => {}); // it may fail before anybody waits for it
    const cancel = () => {
      this.notify("notifications/cancelled", { requestId: id, reason: "The person has cancelled it" }).catch(() => {});
      this.#settle(id, "reject", new RpcError({ message: "Cancelled" }));
    };
    cancelled?.addEventListener("abort", cancel, { once: true });
    this.#post({ jsonrpc: "2.0", id, method, params: asked }, id).catch((error) => this.#settle(id, "reject", error));
    try {
      return await answer;
    } finally {
      cancelled?.removeEventListener("abort", cancel);
    }
  }

  notify(method, params = {}) {
    return this.#post({ jsonrpc: "2.0", method, params });
  }

  // Also while the page goes away.
  close() {
    this.#ends.abort();
    if (this.#session === null) return;
    send(this.#path, { method: "DELETE", headers: this.#headers(), keepalive: true }).catch(() => {});
    this.#session = null;
  }

  #headers() {
    return this.#session === null ? {} : { "Mcp-Session-Id": this.#session, "MCP-Protocol-Version": VERSION };
  }

  async #post(message, id) {
    const headers = { ...this.#headers(), Accept: "application/json, text/event-stream", "Content-Type": "application/json" };
    const response = await send(this.#path, { method: "POST", headers, body: JSON.stringify(message), signal: this.#ends.signal });
    if (message.method === "initialize") this.#session = response.headers.get("Mcp-Session-Id");
    await this.#read(response);
    if (id !== undefined) this.#settle(id, "reject", new RpcError({ message: "The answer did not come" }, response.status));
  }

  async #listen() {
    try {
      const response = await send(this.#path, { headers: { ...this.#headers(), Accept: "text/event-stream" }, signal: this.#ends.signal });
      if (response.ok) await this.#read(response);
    } catch {
      // It was closed, or there is no such stream.
    }
  }

  async #read(response) {
    const type = response.headers.get("Content-Type") ?? "";
    if (type.startsWith("text/event-stream")) {
      for await (const { data } of events(response.body)) this.#heard(JSON.parse(data));
      return;
    }
    const text = await response.text();
    if (text === "") return;
    const message = JSON.parse(text);
    if (message.jsonrpc === "2.0") this.#heard(message);
    else throw new RpcError({ message: message.detail ?? message.title, data: message }, response.status);
  }

  #heard(message) {
    if (message.method === undefined) {
      if (message.id === null || message.id === undefined) throw new RpcError(message.error ?? {});
      if (message.error) this.#settle(message.id, "reject", new RpcError(message.error));
      else this.#settle(message.id, "resolve", message.result);
    } else if (message.id === undefined) {
      try {
        if (message.method === "notifications/progress") this.#open.get(message.params?.progressToken)?.progress?.(message.params);
        this.#handlers.told(message.method, message.params ?? {});
      } catch (error) {
        console.debug("A notification cannot be shown", error); // a call does not fail of it
      }
    } else {
      this.#answer(message);
    }
  }

  async #answer({ id, method, params }) {
    let answer;
    try {
      answer = { result: await this.#handlers.asked(method, params ?? {}) };
    } catch (error) {
      answer = { error: { code: error.code ?? -32603, message: error.message } };
    }
    await this.#post({ jsonrpc: "2.0", id, ...answer }).catch(() => {});
  }

  #settle(id, how, value) {
    const found = this.#open.get(id);
    this.#open.delete(id);
    found?.[how](value);
  }
}
