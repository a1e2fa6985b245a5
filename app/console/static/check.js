// “Check it”: starts the backend once and shows each step while it is taken. “Allow and check again” adds what it missed.

import { make } from "./dom.js";
import { events } from "./events.js";
import { renew } from "./page.js";
import { Problem, send, wordsOf } from "./rest.js";

const WORDS = {
  resolve: "its name is looked up", connect: "it is connected to", tls: "its certificate is checked", start: "it is started",
  initialize: "it is greeted", "tools/list": "it lists its tools", "resources/list": "it lists its resources",
  "prompts/list": "it lists its prompts", fork: "it is forked", catalog: "what it offers is written down",
};
const MOST_ROUNDS = 5; // of adding what is missed and checking again
const WHO = { "platform:admin": "a platform administrator", "tenant:admin": "an administrator of the tenant" };
let leaving; // aborts the check that runs
let last; // what the last check found

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-check], [data-allow]");
  if (button === null || leaving !== undefined) return;
  const shown = document.getElementById("checked"), main = document.getElementById("check");
  const path = main.dataset.check, adds = "allow" in button.dataset;
  leaving = new AbortController();
  main.setAttribute("aria-disabled", "true"); // not `disabled`: it keeps the focus
  main.focus(); // the other one goes
  const rounds = [];
  const again = async () => {
    const progress = new Progress(button.textContent.trim());
    shown.replaceChildren(...rounds, ...progress.parts);
    try {
      last = await check(path, progress, leaving.signal);
    } finally {
      progress.end();
    }
  };
  try {
    if (!adds) await again();
    while (adds && last.patch !== null && rounds.length < MOST_ROUNDS) {
      rounds.push(roundOf(last, rounds.length + 1));
      await add(path.replace(/:check$/, ""), last, leaving.signal);
      await again();
    }
    shown.replaceChildren(...rounds, ...partsOf(last));
    await renew(adds ? ["state", "offer", "confined"] : ["offer"]);
  } catch (error) {
    shown.replaceChildren(...rounds, make("p", { class: "error", role: "alert" }, wordsOf(error)));
  } finally {
    leaving = undefined;
    main.removeAttribute("aria-disabled");
  }
});

addEventListener("pagehide", () => leaving?.abort()); // nobody waits for it any more

// What REST answers at the end.
async function check(path, progress, signal) {
  const response = await send("/api/v1" + path, { method: "POST", headers: { Accept: "text/event-stream" }, signal });
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
  for await (const { kind, data } of events(response.body)) {
    const told = JSON.parse(data);
    if (kind === "result") return told;
    if (kind === "problem") throw new Problem(told.status, told);
    if (kind === "begun") progress.begin(told);
    if (kind === "taken") progress.taken(told);
  }
  throw new Problem(response.status, { detail: "The gateway ended the check without an answer." });
}

// Adds what was missed, as far as whoever has signed in may: to the registration that was checked, and to no other.
async function add(path, { patch, tag }, signal) {
  const headers = { "Content-Type": "application/json", "If-Match": tag };
  const response = await send("/api/v1" + path, { method: "PATCH", headers, body: JSON.stringify(patch), signal });
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
}

// The bar, the step that is taken, and those that were. Screen readers hear each step once, and no seconds.
class Progress {
  #bar;
  #words = make("span", { id: "check-step" }, "The gateway is asked");
  #seconds = make("span", { "aria-hidden": "true", class: "soft" });
  #rows = make("tbody");
  #began = performance.now();
  #clock = setInterval(() => {
    this.#seconds.textContent = `${((performance.now() - this.#began) / 1000).toFixed(0)} s`;
  }, 1000);

  constructor(label) {
    this.#bar = make("progress", { max: 1, value: 0, "aria-label": label, "aria-describedby": "check-step" });
    this.parts = [this.#bar, make("p", {}, this.#words, " ", this.#seconds), make("table", { "aria-live": "off" }, this.#rows)];
  }

  begin({ step, number, of }) {
    this.#bar.max = of;
    this.#bar.value = number - 1;
    this.#began = performance.now();
    this.#words.textContent = `Step ${number} of ${of}: ${WORDS[step] ?? step}`;
    this.#seconds.textContent = "";
  }

  taken({ step, ms }) {
    this.#bar.value += 1;
    this.#rows.append(make("tr", {}, make("th", { scope: "row" }, step), make("td", { class: "n" }, `${ms.toFixed(1)} ms`)));
  }

  end() {
    clearInterval(this.#clock);
  }
}

function partsOf(found) {
  const whole = found.steps.reduce((sum, step) => sum + step.ms, 0) || 1;
  const rows = found.steps.map((step) => make("tr", {},
    make("th", { scope: "row" }, step.step),
    make("td", {}, make("meter", { min: 0, max: whole, value: step.ms, "aria-label": step.step }, `${step.ms} ms`)),
    make("td", { class: "n" }, `${step.ms.toFixed(1)} ms`)));
  const counts = ["tools", "resources", "prompts"].filter((kind) => found[kind] !== null).map((kind) => `${found[kind]} ${kind}`);
  const about = found.ok
    ? make("p", { class: "told" }, `${found.server.name ?? "The server"} ${found.server.version ?? ""} answers: ${counts.join(", ") || "it offers nothing"}`)
    : make("p", { class: "error", role: "alert" }, [`${found.failure.step}: ${found.failure.detail}`, found.failure.hint].filter(Boolean).join(". "));
  const parts = [about, make("table", {}, make("tbody", {}, ...rows))];
  if (found.failure?.stderr.length) parts.push(make("pre", { tabindex: 0, "aria-label": "stderr" }, found.failure.stderr.join("\n")));
  if (found.start_reason) parts.push(make("p", { class: "notice warn" }, `Its processes are executed, not forked: ${found.start_reason}`));
  for (const words of found.left_out) parts.push(make("p", { class: "notice info" }, words));
  for (const missed of found.missed) parts.push(make("p", { class: "notice warn" }, wordsOfMissed(missed)));
  if (found.patch !== null) {
    parts.push(make("div", { class: "row" }, make("button", { type: "button", "data-allow": true }, "Allow and check again")));
  }
  if (found.unwatched) parts.push(make("p", { class: "soft" }, `Its sandbox may keep more from it: ${found.unwatched}`));
  return parts;
}

function roundOf(found, number) {
  const missed = found.missed.map((each) => make("li", {}, wordsOfMissed(each)));
  const words = `Round ${number}: it ${found.ok ? "works" : "does not work"}. Added: ${JSON.stringify(found.patch)}`;
  return make("details", {}, make("summary", {}, words), make("ul", {}, ...missed));
}

function wordsOfMissed({ kind, what, access, count, proposal, granted_by, may_grant, uid, note }) {
  const begins = kind === "limit" ? "It has reached this limit" : "Its sandbox keeps this from it";
  const words = `${begins}: ${kind} ${what}${access ? ` (${access})` : ""}, ${count ? `${count} times` : "not asked for yet"}.`;
  if (uid !== null) return `${words} It runs as the user ${uid}, whom owner and mode of the file keep out: chown or setfacl on the node.`;
  const member = kind === "limit" ? "limits" : "sandbox";
  const entry = proposal === null ? "" : ` To allow it, add ${JSON.stringify(proposal)} to the backend's ${member}.`;
  const who = proposal === null || may_grant ? "" : ` Only ${WHO[granted_by] ?? granted_by} may.`;
  return `${words}${entry}${who}${note ? ` ${note}` : ""}`;
}
