// Trying what a backend offers: tools, prompts and resources, with all that a server may ask or tell meanwhile.

import { make, said } from "./dom.js";
import { McpClient, RpcError } from "./mcp.js";
import { formOf } from "./schema_form.js";

const place = document.getElementById("try");
const offered = document.getElementById("offered");
const work = document.getElementById("work");
const shown = document.getElementById("outcome");
const heard = document.getElementById("heard");
const MAX_HEARD = 200;
const MAX_OFFERED = 2000; // of each kind
const MAX_SHOWN = 200_000; // characters of a text
const MAX_QUESTIONS = 8; // that wait for the person; the others are refused

const client = new McpClient(place.dataset.endpoint, { asked, told });
addEventListener("pagehide", () => client.close());
start();

async function start() {
  try {
    const hello = await client.open();
    document.getElementById("server").textContent = `${hello.serverInfo?.name ?? "server"} ${hello.serverInfo?.version ?? ""}, revision ${hello.protocolVersion}`;
    const has = hello.capabilities ?? {};
    if (has.logging) await client.request("logging/setLevel", { level: "debug" }).catch(() => {});
    const [tools, prompts, resources] = await Promise.all([
      has.tools ? all("tools/list", "tools") : [],
      has.prompts ? all("prompts/list", "prompts") : [],
      has.resources ? all("resources/list", "resources") : [],
    ]);
    list("Tools", tools, (tool) => tool.name, tool);
    list("Prompts", prompts, (each) => each.name, prompt);
    list("Resources", resources, (each) => each.uri, resource);
    const wanted = tools.find((each) => each.name === place.dataset.tool);
    if (wanted) tool(wanted);
    else if (!tools.length && !prompts.length && !resources.length) work.replaceChildren(make("p", {}, "It offers nothing."));
    place.removeAttribute("aria-busy");
  } catch (error) {
    place.removeAttribute("aria-busy");
    failed(error);
  }
}

async function all(method, member) {
  const found = [];
  let cursor;
  for (let page = 0; page < 50; page++) {
    const result = await client.request(method, cursor ? { cursor } : {});
    found.push(...listed(result[member]).filter((each) => typeof each === "object" && each !== null));
    cursor = result.nextCursor;
    if (!cursor || found.length >= MAX_OFFERED) break;
  }
  return found.slice(0, MAX_OFFERED);
}

function listed(value) {
  return Array.isArray(value) ? value : [];
}

function list(words, items, nameOf, choose) {
  if (!items.length) return;
  const entries = items.map((item) => {
    const button = make("button", { type: "button", class: "quiet", title: said(item.description) }, said(nameOf(item)));
    button.addEventListener("click", () => choose(item));
    return make("li", {}, button);
  });
  offered.append(make("h2", {}, words), make("ul", { class: "plain" }, ...entries));
}

// --- one of them

function tool(chosen) {
  const form = formOf(chosen.inputSchema);
  const raw = make("textarea", { rows: 8, spellcheck: "false", "aria-label": "Arguments, as JSON" });
  const asJson = make("input", { type: "checkbox" });
  const fields = make("div", {}, form.element);
  asJson.addEventListener("change", () => {
    if (asJson.checked) {
      raw.value = JSON.stringify(attempt(form.read) ?? {}, null, 2);
      fields.replaceChildren(raw);
    } else fields.replaceChildren(form.element);
  });
  const read = () => (asJson.checked ? JSON.parse(raw.value || "{}") : form.read());
  const hints = Object.entries(chosen.annotations ?? {}).filter(([name]) => name !== "title").map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  show(chosen.title ?? chosen.name, chosen.description, hints.join(", "), "Call", make("label", { class: "tick" }, asJson, "Write the arguments as JSON"), fields, (options) => client.request("tools/call", { name: chosen.name, arguments: read() }, options));
}

function prompt(chosen) {
  const known = listed(chosen.arguments).filter((each) => typeof each?.name === "string");
  const properties = Object.fromEntries(known.map((each) => [each.name, { type: "string", title: each.title, description: each.description }]));
  const required = known.filter((each) => each.required).map((each) => each.name);
  const form = formOf({ properties, required });
  show(chosen.title ?? chosen.name, chosen.description, "", "Get it", null, form.element, (options) => client.request("prompts/get", { name: chosen.name, arguments: form.read() }, options));
}

function resource(chosen) {
  show(chosen.title ?? chosen.name ?? chosen.uri, chosen.description, chosen.mimeType ?? "", "Read it", null, make("p", {}, make("code", {}, said(chosen.uri))), (options) => client.request("resources/read", { uri: chosen.uri }, options));
}

function show(title, description, hints, verb, before, fields, act) {
  const go = make("button", {}, verb);
  const form = make("form", {}, make("h2", { tabindex: "-1" }, said(title)), make("p", {}, said(description)), make("p", { class: "hint" }, said(hints)), ...(before ? [before] : []), fields, make("p", { class: "row" }, go));
  form.noValidate = true;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(form, go, act);
  });
  work.replaceChildren(form);
  shown.replaceChildren();
  form.querySelector("h2").focus();
}

async function run(form, go, act) {
  const cancelled = new AbortController();
  const cancel = make("button", { type: "button", class: "danger" }, "Cancel");
  const bar = make("progress", { "aria-label": "Progress" });
  const words = make("span", { class: "hint" });
  cancel.addEventListener("click", () => cancelled.abort());
  const began = performance.now();
  const progress = (told) => {
    const isPart = told.total > 0 && Number.isFinite(told.total) && Number.isFinite(told.progress);
    if (isPart) Object.assign(bar, { max: told.total, value: told.progress });
    words.textContent = `${isPart ? `${told.progress} of ${told.total}` : said(told.progress)} ${said(told.message)}`;
  };
  form.querySelector(".error")?.remove();
  let answer;
  try {
    answer = act({ cancelled: cancelled.signal, progress });
  } catch (error) {
    form.prepend(make("p", { class: "error", role: "alert" }, error.message));
    error.field?.focus();
    return;
  }
  go.disabled = true;
  go.after(cancel, bar, words);
  shown.replaceChildren();
  heard.replaceChildren();
  try {
    const result = await answer;
    succeeded(result, performance.now() - began);
  } catch (error) {
    failed(error, performance.now() - began);
  } finally {
    go.disabled = false;
    for (const each of [cancel, bar, words]) each.remove();
  }
}

function attempt(read) {
  try {
    return read();
  } catch {
    return undefined;
  }
}

// --- outcomes

function succeeded(result, took) {
  const text = JSON.stringify(result, null, 2) ?? "null";
  const size = new Blob([JSON.stringify(result) ?? ""]).size;
  const parts = [make("p", { class: result?.isError ? "error" : "told" }, `${result?.isError ? "The tool says that it has failed" : "Done"}, ${time(took)}, ${size.toLocaleString("en")} bytes`)];
  for (const each of listed(result?.content)) parts.push(block(each));
  for (const each of listed(result?.messages)) parts.push(make("h3", {}, said(each?.role)), block(each?.content));
  for (const each of listed(result?.contents)) parts.push(block({ type: "resource", resource: each }));
  if (result?.structuredContent !== undefined) parts.push(make("h3", {}, "Structured"), code(JSON.stringify(result.structuredContent, null, 2)));
  parts.push(make("details", {}, make("summary", {}, "The whole answer"), code(text)));
  shown.replaceChildren(make("h2", {}, "Answer"), ...parts);
}

function failed(error, took) {
  const facts = error instanceof RpcError ? [error.data.reason, error.code === undefined ? "" : `code ${error.code}`, error.data.hint, error.data.request_id ? `request ${error.data.request_id}` : ""] : [];
  const words = error instanceof TypeError ? "The gateway cannot be reached." : error.message;
  shown.replaceChildren(make("h2", {}, "Answer"), make("p", { class: "error", role: "alert" }, [words, ...facts, took === undefined ? "" : time(took)].filter(Boolean).join(" – ")));
}

function block(given) {
  const each = given ?? {};
  if (each.type === "text") return code(said(each.text));
  if (each.type === "image") return make("img", { src: dataUrl(each, "image/"), alt: "Image of the answer", class: "answer" });
  if (each.type === "audio") return make("p", {}, `Audio, ${said(each.mimeType)}, ${said(each.data ?? "").length.toLocaleString("en")} characters of base64`);
  if (each.type === "resource") {
    const found = each.resource ?? {};
    return make("div", {}, make("p", {}, make("code", {}, said(found.uri ?? "")), ` ${said(found.mimeType)}`), found.text === undefined ? make("p", { class: "hint" }, `${said(found.blob ?? "").length.toLocaleString("en")} characters of base64`) : code(said(found.text)));
  }
  if (each.type === "resource_link") return make("p", {}, "Resource ", make("code", {}, said(each.uri ?? "")));
  return code(JSON.stringify(each, null, 2));
}

function dataUrl(each, family) {
  const type = said(each.mimeType ?? "");
  const isSafe = type.startsWith(family) && /^[a-z]+\/[a-z0-9.+-]+$/i.test(type) && /^[A-Za-z0-9+/=\s]*$/.test(said(each.data ?? ""));
  return isSafe ? `data:${type};base64,${each.data}` : "data:,";
}

function code(text) {
  const more = text.length - MAX_SHOWN;
  const cut = more > 0 ? `${text.slice(0, MAX_SHOWN)}\n… and ${more.toLocaleString("en")} more characters, which are not shown` : text;
  return make("pre", { tabindex: 0, "aria-label": "Answer" }, cut);
}

function time(took) {
  return took < 1000 ? `${took.toFixed(0)} ms` : `${(took / 1000).toFixed(1)} s`;
}

// --- what the server tells and asks meanwhile

function told(method, params) {
  const words = method === "notifications/message"
    ? `${[said(params.level) || "log", said(params.logger)].filter(Boolean).join(" ")}: ${said(params.data)}`
    : method === "notifications/progress" ? `progress ${said(params.progress)}${params.total ? ` of ${said(params.total)}` : ""} ${said(params.message)}` : `${method} ${JSON.stringify(params)}`;
  heard.append(make("li", {}, words.slice(0, 2000)));
  while (heard.children.length > MAX_HEARD) heard.firstChild.remove();
}

function asked(method, params) {
  if (method === "ping") return {};
  if (method === "roots/list") return { roots: [] };
  if (method === "elicitation/create") return params.mode === "url" ? askUrl(params) : askForm(params);
  if (method === "sampling/createMessage") return askModel(params);
  throw Object.assign(new Error(`The console does not know ${method}`), { code: -32601 });
}

// One question after the other: a server may ask many at once.
let waiting = 0;
let turn = Promise.resolve();

function dialog(...about) {
  if (waiting >= MAX_QUESTIONS) throw Object.assign(new Error("Too many questions wait for the person"), { code: -32000 });
  waiting += 1;
  const answer = turn.then(() => asking(...about)).finally(() => { waiting -= 1; });
  turn = answer.catch(() => {});
  return answer;
}

// A dialog with these parts; `buttons` are [words, value]: the value is answered, or made by a function; an Error is thrown.
function asking(title, parts, buttons, otherwise) {
  return new Promise((resolve, reject) => {
    const end = (answer) => (answer instanceof Error ? reject : resolve)(answer);
    const box = make("dialog", { "aria-label": title });
    const error = make("p", { class: "error", role: "alert", hidden: true });
    const row = make("div", { class: "row" });
    for (const [words, value] of buttons) {
      const button = make("button", { type: "button", class: words === buttons[0][0] ? "" : "quiet" }, words);
      button.addEventListener("click", () => {
        try {
          const answer = typeof value === "function" ? value() : value;
          end(answer);
          box.close();
        } catch (problem) {
          error.textContent = problem.message;
          error.hidden = false;
          problem.field?.focus();
        }
      });
      row.append(button);
    }
    box.addEventListener("close", () => {
      box.remove();
      end(otherwise);
    });
    box.append(make("h2", {}, title), error, ...parts, row);
    document.body.append(box);
    box.showModal();
  });
}

function askForm(params) {
  const form = formOf(params.requestedSchema);
  const buttons = [["Answer", () => ({ action: "accept", content: form.read() })], ["Decline", { action: "decline" }], ["Cancel", { action: "cancel" }]];
  return dialog("The server asks", [make("p", {}, said(params.message ?? "")), form.element], buttons, { action: "cancel" });
}

function askUrl(params) {
  const address = make("p", {}, make("code", {}, said(params.url ?? "")));
  const hint = make("p", { class: "hint" }, "Open this address yourself if you trust it; the console does not.");
  return dialog("The server asks you to visit a page", [make("p", {}, said(params.message ?? "")), address, hint], [["I have been there", { action: "accept" }], ["Decline", { action: "decline" }]], { action: "cancel" });
}

function askModel(params) {
  const text = make("textarea", { rows: 5, "aria-label": "What the model would say" });
  const conversation = listed(params.messages).map((each) => code(`${said(each?.role)}: ${said(each?.content?.text ?? each?.content)}`));
  const refused = Object.assign(new Error("The person has refused"), { code: -1 });
  const answer = () => ({ role: "assistant", model: "a person", content: { type: "text", text: text.value }, stopReason: "endTurn" });
  const buttons = [["Answer", answer], ["Refuse", refused]];
  return dialog("The server asks a model: you are the model", [...conversation, text], buttons, refused);
}
