// The messages of an inspection: both sides of the gateway next to each other, while they pass.
//
// A row has a message of the client's side and the same one of the backend's. What client and server have written is text.

import { make } from "./dom.js";
import { rest, wordsOf } from "./rest.js";

const EVERY_MS = 1000;
const PAGE = 200;
const MOST_ROWS = 2000; // older ones leave the page; the file has all that are kept
const MOST_TEXT = 32 << 20; // characters of payloads: likewise
const SIDES = { client: ["client → gateway", "gateway → client"], backend: ["gateway → backend", "backend → gateway"] };

const list = document.getElementById("traffic");
const state = document.getElementById("traffic-state");
const follow = document.getElementById("follow");
const words = document.getElementById("find");
const kind = document.getElementById("kind");
const path = list.dataset.path;
const rows = new Map(); // by the number of a message: its row
let after = 0;
let total = 0;
let text = 0; // characters of payloads on the page

async function load() {
  for (;;) {
    const page = await rest("GET", `${path}/messages?after=${after}&limit=${PAGE}`);
    for (const message of page.items) show(message);
    after = page.next_after;
    if (page.items.length < PAGE) {
      tell(page.inspection, page.silent_nodes);
      return page.inspection.ended_at === null;
    }
  }
}

function show(message) {
  total += 1;
  let row = message.pair === null ? undefined : rows.get(message.pair);
  if (row === undefined || row.querySelector(`.${message.side}`).childNodes.length) {
    row = make("li", {}, time(message), make("div", { class: "side client" }), make("div", { class: "side backend" }));
    list.append(row);
  }
  rows.set(message.number, row);
  row.messages = [...(row.messages ?? []), message];
  text += message.payload?.length ?? 0;
  row.querySelector(`.${message.side}`).append(...cell(message));
  row.dataset.kind = `${row.dataset.kind ?? ""} ${message.kind} ${message.method === "tools/call" ? "call" : ""}`;
  hide(row);
  while (list.childElementCount > MOST_ROWS || (text > MOST_TEXT && list.childElementCount > 1)) drop(list.firstElementChild);
}

function drop(row) {
  for (const { number, payload } of row.messages) {
    rows.delete(number);
    text -= payload?.length ?? 0;
  }
  row.remove();
}

function time(message) {
  const parts = [make("time", { datetime: message.at }, message.at.slice(11, 23))];
  if (list.dataset.several) parts.push(" ", make("code", {}, message.session));
  return make("p", { class: "soft when" }, ...parts);
}

function cell(message) {
  const [up, down] = SIDES[message.side];
  const about = [message.id && `id ${message.id}`, `${message.size} B`, message.took_ms !== null && `${message.took_ms.toFixed(1)} ms`,
    message.secrets && `${message.secrets} masked`, message.is_cut && "cut"].filter(Boolean);
  const parts = [
    make("p", { class: "way" }, message.direction === "to_server" ? up : down, message.member ? ` (${message.member})` : ""),
    make("p", {}, make("span", { class: `state ${message.kind === "error" || message.kind === "invalid" ? "error" : ""}` }, message.kind), " ",
      make("strong", {}, message.method || "–"), " ", make("code", {}, message.tool)),
    make("p", { class: "soft" }, about.join(" · ")),
  ];
  if (message.payload !== null) parts.push(payload(message));
  return parts;
}

// The text is made when it is asked for: most are never looked at.
function payload(message) {
  const details = make("details", { class: "payload" }, make("summary", {}, `What it says`));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(make("pre", { tabindex: 0, "aria-label": "Payload" }, pretty(message.payload)));
  });
  details.words = message.payload.toLowerCase();
  return details;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text;
  }
}

// --- which of them

function hide(row) {
  const wanted = words.value.trim().toLowerCase();
  const said = () => row.textContent.toLowerCase().includes(wanted) || [...row.querySelectorAll("details")].some((each) => each.words.includes(wanted));
  const isKind = kind.value === "" || row.dataset.kind.split(" ").includes(kind.value) || (kind.value === "error" && row.dataset.kind.includes("invalid"));
  row.hidden = !isKind || (wanted !== "" && !said());
}

for (const field of [words, kind]) {
  field.addEventListener("input", () => {
    for (const row of list.children) hide(row);
    tell();
  });
}
document.getElementById("traffic-filter").addEventListener("submit", (event) => event.preventDefault());

let last = null;
let silent = [];
function tell(about = last, missing = silent) {
  last = about;
  silent = missing;
  if (about === null) return;
  const hidden = [...list.children].filter((row) => row.hidden).length;
  const said = [`${total} messages`, hidden && `${hidden} rows hidden`, about.dropped && `${about.dropped} dropped, as the memory is full`,
    about.missed && `${about.missed} sessions not seen`, missing.length && `without ${missing.join(", ")}, which did not answer`,
    about.ended_at === null ? `open until ${about.ends_at.slice(11, 16)} UTC` : `it has ended (${about.ending})`].filter(Boolean).join(", ");
  if (state.textContent !== said) state.textContent = said;
}

// --- while they pass

async function again() {
  let isOpen = true;
  try {
    if (follow.checked && !document.hidden) isOpen = await load();
  } catch (error) {
    state.textContent = wordsOf(error);
    if (error.status === 404) return;
  }
  if (isOpen) setTimeout(again, EVERY_MS);
}

again();
