// A real OpenID provider on loopback, driven by tests/integration/test_openid_provider.py:
//
//     node provider.mjs CLIENT_ID CLIENT_SECRET REDIRECT_URI [PUBLIC_KEY]
//
// With a public key (PEM) the client has no secret, but signs who it is (`private_key_jwt`).
//
// Writes its issuer on one line of stdout. POST /test/accounts has the people, as {NAME: [GROUP, …]}: who is not among
// them any more is gone, with all that was granted to them. POST /test/tokens answers what the token endpoint was asked
// so far: the grant type and the status of each answer. People sign in with the form at /interaction/….

import { createPublicKey, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { calculateJwkThumbprint, exportJWK, generateKeyPair } from "jose";
import Provider from "oidc-provider";

const [clientId, clientSecret, redirectUri, publicKey] = process.argv.slice(2);
const jwk = publicKey && createPublicKey(publicKey).export({ format: "jwk" });
const credential = jwk
  ? { jwks: { keys: [{ ...jwk, kid: await calculateJwkThumbprint(jwk) }] }, token_endpoint_auth_method: "private_key_jwt" }
  : { client_secret: clientSecret, token_endpoint_auth_method: "client_secret_post" };
const { privateKey } = await generateKeyPair("RS256", { extractable: true });
let accounts = {};
const granted = new Map(); // by grant id: whose
const asked = [];

const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: clientId,
      ...credential,
      redirect_uris: [redirectUri],
      grant_types: ["authorization_code", "refresh_token"],
    },
  ],
  jwks: { keys: [{ ...(await exportJWK(privateKey)), use: "sig", alg: "RS256", kid: "one" }] },
  cookies: { keys: [randomBytes(16).toString("hex")] },
  claims: { openid: ["sub", "groups"] },
  conformIdTokenClaims: false, // groups are in the ID token, as the large providers have it
  rotateRefreshToken: true,
  // Without it a refresh token is only for who sends prompt=consent.
  issueRefreshToken: async (_, client) => client.grantTypeAllowed("refresh_token"),
  findAccount: (_, id) =>
    accounts[id] && { accountId: id, claims: () => ({ sub: id, groups: accounts[id] }) },
  loadExistingGrant: async (context) => {
    const { client, session } = context.oidc;
    const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
    grant.addOIDCScope("openid offline_access");
    granted.set(await grant.save(), session.accountId);
    return grant;
  },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  ttl: { IdToken: 3600, AccessToken: 3600, RefreshToken: 86400, Session: 3600, Grant: 86400, Interaction: 600 },
});

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

async function changed(request) {
  accounts = JSON.parse(await bodyOf(request));
  for (const [id, person] of granted) {
    if (!accounts[person]) await (await provider.Grant.find(id))?.destroy();
  }
  return "{}";
}

provider.use(async (context, next) => {
  await next();
  if (context.path === "/token") asked.push([context.oidc.params.grant_type, context.status]);
});
const provide = provider.callback();
server.on("request", async (request, response) => {
  const said = (text) => response.end(text);
  if (request.url === "/test/accounts") return said(await changed(request));
  if (request.url === "/test/tokens") return said(JSON.stringify(asked));
  if (!request.url.startsWith("/interaction/")) return provide(request, response);
  if (request.method === "GET") return said('<form method="post"><input name="login"><button>Sign in</button></form>');
  const accountId = new URLSearchParams(await bodyOf(request)).get("login");
  return provider.interactionFinished(request, response, { login: { accountId } });
});
console.log(issuer);
