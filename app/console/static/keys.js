// A new key, shown once, with what to paste into clients.

import { make } from "./dom.js";
import { base } from "./rest.js";

document.addEventListener("answered", (event) => {
  if (event.target.id !== "new-key") return;
  event.preventDefault();
  const made = document.getElementById("made");
  document.getElementById("secret").textContent = event.detail.key;
  made.dataset.key = event.detail.id;
  made.hidden = false;
  show(event.detail.key);
  made.querySelector("h2").setAttribute("tabindex", "-1");
  made.querySelector("h2").focus();
});

document.addEventListener("change", (event) => {
  if (event.target.id === "for") show(document.getElementById("secret").textContent);
});

function show(key) {
  const made = document.getElementById("made");
  const name = document.getElementById("for")?.value;
  if (name === undefined) return;
  const url = `${made.dataset.gateway}/t/${made.dataset.tenant}/${name}/mcp`;
  const headers = { Authorization: `Bearer ${key}` };
  const cursor = btoa(JSON.stringify({ url, headers }));
  const code = encodeURIComponent(JSON.stringify({ name, type: "http", url, headers }));
  const snippets = [
    ["Claude Code", `claude mcp add --transport http ${name} ${url} --header "Authorization: Bearer ${key}"`],
    ["Cursor, ~/.cursor/mcp.json", JSON.stringify({ mcpServers: { [name]: { url, headers } } }, null, 2)],
    ["VS Code, .vscode/mcp.json", JSON.stringify({ servers: { [name]: { type: "http", url, headers } } }, null, 2)],
  ];
  const links = make("p", { class: "row" },
    make("a", { class: "button quiet", href: `cursor://anysphere.cursor-deeplink/mcp/install?name=${encodeURIComponent(name)}&config=${encodeURIComponent(cursor)}` }, "Add to Cursor"),
    make("a", { class: "button quiet", href: `vscode:mcp/install?${code}` }, "Add to VS Code"),
    make("a", { href: `${base}/console/tenants/${made.dataset.tenant}/keys/${made.dataset.key}?for=${name}`, target: "_blank", rel: "noopener" }, "The other clients"));
  document.getElementById("snippets").replaceChildren(links, ...snippets.flatMap(([client, text]) => [make("h3", {}, client), make("pre", { tabindex: 0, "aria-label": client }, text)]));
}
