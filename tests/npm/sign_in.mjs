// The OAuth client of the official TypeScript SDK, which knows an address alone; driven by
// tests/integration/test_sign_in_typescript.py:
//
//     node sign_in.mjs URL
//
// Prints where the person has to go, reads where they came back to, and lists the tools twice: with the access token,
// and with one that is refused, so that the next one comes from the refresh token. One JSON object a line.

import { createInterface } from "node:readline";
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const url = new URL(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (told) => process.stdout.write(JSON.stringify(told) + "\n");

const provider = {
  kept: {},
  redirectUrl: "http://127.0.0.1:33419/callback", // nobody listens: the test reads where a browser would go
  get clientMetadata() {
    return { client_name: "TypeScript", redirect_uris: [this.redirectUrl], token_endpoint_auth_method: "none" };
  },
  clientInformation() { return this.kept.client; },
  saveClientInformation(client) { this.kept.client = client; },
  tokens() { return this.kept.tokens; },
  saveTokens(tokens) { this.kept.tokens = tokens; },
  codeVerifier() { return this.kept.verifier; },
  saveCodeVerifier(verifier) { this.kept.verifier = verifier; },
  redirectToAuthorization(address) { say({ authorize: address.href }); },
};

async function tools() {
  const client = new Client({ name: "typescript", version: "1.0.0" });
  const transport = new StreamableHTTPClientTransport(url, { authProvider: provider });
  await client.connect(transport);
  const found = (await client.listTools()).tools.length;
  await client.close();
  return found;
}

try {
  await tools();
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
}
const back = new URL((await lines.next()).value);
const transport = new StreamableHTTPClientTransport(url, { authProvider: provider });
await transport.finishAuth(back.searchParams.get("code"));
say({ tools: await tools() });
const refresh = provider.kept.tokens.refresh_token;
provider.kept.tokens = { ...provider.kept.tokens, access_token: "e30.e30.e30" };
say({ tools: await tools(), turned: provider.kept.tokens.refresh_token !== refresh });
process.exit(0);
