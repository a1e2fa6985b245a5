// A small client on the official TypeScript SDK, driven by tests/integration/test_typescript_client.py:
//
//     node client.mjs streamable|sse URL KEY
//
// Reads steps from stdin, one JSON array a line: [method, ...arguments] of the SDK's Client, or ["wait", notification].
// Writes one JSON object a line: {"result": …} or {"error": {…}} for each step, in order. Questions of the server
// (sampling, elicitation, roots) get canned answers.

import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const [kind, url, key] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${key}` };

function makeTransport() {
  if (kind === "sse") return new SSEClientTransport(new URL(url), { requestInit: { headers } });
  return new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
}

const client = new Client(
  { name: "typescript-client", version: "1.0.0" },
  { capabilities: { sampling: {}, elicitation: {}, roots: { listChanged: true } } },
);
client.setRequestHandler(CreateMessageRequestSchema, (request) => ({
  role: "assistant",
  model: "canned",
  content: { type: "text", text: `answer to ${request.params.messages[0].content.text}` },
}));
client.setRequestHandler(ElicitRequestSchema, () => ({ action: "accept", content: { name: "Ada Lovelace" } }));
client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: "file:///srv/project", name: "project" }] }));

const heard = [];
let wake = () => {};
client.fallbackNotificationHandler = async (notification) => {
  heard.push(notification);
  wake();
};

async function waitFor(method) {
  for (;;) {
    const found = heard.find((notification) => notification.method === method);
    if (found) return found;
    await new Promise((resolve) => (wake = resolve));
  }
}

const transport = makeTransport();

const steps = {
  wait: waitFor,
  // A call with the progress notifications it got.
  progress: async (name, args) => {
    const seen = [];
    const result = await client.callTool({ name, arguments: args }, undefined, { onprogress: (step) => seen.push(step.progress) });
    return { seen, result };
  },
  session: async () => ({ id: transport.sessionId ?? null, version: transport.protocolVersion ?? null, server: client.getServerVersion() }),
  terminate: async () => (kind === "sse" ? null : transport.terminateSession()),
};

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

await client.connect(transport);
for await (const line of createInterface({ input: process.stdin })) {
  const [method, ...args] = JSON.parse(line);
  try {
    say({ result: (await (steps[method] ?? client[method].bind(client))(...args)) ?? null });
  } catch (error) {
    say({ error: { code: error.code ?? null, message: String(error.message), data: error.data ?? null } });
  }
}
await client.close();
