// A program on the official TypeScript SDK that is given an address and nothing else, driven by
// tests/integration/test_sign_in_typescript.py:
//
//     node sign_in.mjs URL REDIRECT_URI [CLIENT_ID [CLIENT_SECRET]]
//
// Writes one JSON object a line. {"go": URL}: a person is to go there; the next line of stdin is where they came back.
// Then each line of stdin is a step, and is answered: "tools" lists their names; "spoil" replaces the access token by
// one that nobody has issued; "kept" is what the program keeps: its client and its tokens.

import { createInterface } from "node:readline";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, redirectUri, id, secret] = process.argv.slice(2);
const kept = { client: id && { client_id: id, ...(secret && { client_secret: secret }) } };
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

const authProvider = {
  redirectUrl: redirectUri,
  clientMetadata: { client_name: "In TypeScript", redirect_uris: [redirectUri], token_endpoint_auth_method: "none" },
  state: () => "a state of its own",
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  redirectToAuthorization: (to) => say({ go: String(to) }),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
};

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const next = async () => (await lines.next()).value;
const made = () => new StreamableHTTPClientTransport(new URL(url), { authProvider });
const client = new Client({ name: "in-typescript", version: "1.0.0" });

const first = made();
try {
  await client.connect(first);
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
  const back = new URL(await next());
  if (back.searchParams.get("state") !== authProvider.state()) throw new Error("another state");
  await first.finishAuth(back.searchParams.get("code"));
  await client.connect(made());
}

const steps = {
  tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
  spoil: () => void (kept.tokens.access_token = "of-nobody"),
  kept: () => ({ client: kept.client, tokens: kept.tokens }),
};
for (let step = await next(); step !== undefined; step = await next()) {
  say({ result: (await steps[step]()) ?? null });
}
await client.close();
