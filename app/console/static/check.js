// “Check it”: starts the backend once and shows each step while it is taken.

import { make } from "./dom.js";
import { events } from "./events.js";
import { renew } from "./page.js";
import { Problem, send, wordsOf } from "./rest.js";

const WORDS = {
  resolve: "its name is looked up", connect: "it is connected to", tls: "its certificate is checked", start: "it is started",
  initialize: "it is greeted", "tools/list": "it lists its tools", "resources/list": "it lists its resources",
  "prompts/list": "it lists its prompts", fork: "it is forked", catalog: "what it offers is written down",
};
let leaving; // aborts the check that runs

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-check]");
  if (button === null || leaving !== undefined) return;
  const shown = document.getElementById("checked");
  const progress = new Progress(button.textContent.trim());
  shown.replaceChildren(...progress.parts);
  leaving = new AbortController();
  button.setAttribute("aria-disabled", "true"); // not `disabled`: it keeps the focus
  try {
    shown.replaceChildren(...partsOf(await check(button.dataset.check, progress, leaving.signal)));
    await renew(["offer"]);
  } catch (error) {
    shown.replaceChildren(make("p", { class: "error", role: "alert" }, wordsOf(error)));
  } finally {
    progress.end();
    leaving = undefined;
    button.removeAttribute("aria-disabled");
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
  if (found.unwatched) parts.push(make("p", { class: "soft" }, `Its sandbox may keep more from it: ${found.unwatched}`));
  return parts;
}

function wordsOfMissed({ kind, what, access, count, proposal, uid, note }) {
  const words = `Its sandbox keeps this from it: ${kind} ${what}${access ? ` (${access})` : ""}, ${count} times.`;
  if (uid !== null) return `${words} It runs as the user ${uid}, whom owner and mode of the file keep out: chown or setfacl on the node.`;
  const entry = proposal === null ? "" : ` To allow it, add ${JSON.stringify(proposal)} to the backend's sandbox.`;
  return `${words}${entry}${note ? ` ${note}` : ""}`;
}
