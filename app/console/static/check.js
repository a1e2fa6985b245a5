// “Check it”: starts the backend once and shows each step.

import { make } from "./dom.js";
import { rest, wordsOf } from "./rest.js";

const STEPS = ["start", "initialize", "tools/list", "resources/list", "prompts/list"];

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-check]");
  if (button === null) return;
  const shown = document.getElementById("checked");
  button.disabled = true;
  const bar = make("progress", { "aria-label": "Check" });
  const words = make("p", {}, "It is being started…");
  shown.replaceChildren(bar, words);
  const began = performance.now();
  const clock = setInterval(() => {
    words.textContent = `It is being asked what it offers: ${((performance.now() - began) / 1000).toFixed(0)} s`;
  }, 1000);
  try {
    show(shown, await rest("POST", button.dataset.check, {}));
  } catch (error) {
    shown.replaceChildren(make("p", { class: "error", role: "alert" }, wordsOf(error)));
  } finally {
    clearInterval(clock);
    button.disabled = false;
  }
});

function show(shown, found) {
  const whole = found.steps.reduce((sum, step) => sum + step.ms, 0) || 1;
  const rows = found.steps.map((step) => make("tr", {},
    make("th", { scope: "row" }, step.step),
    make("td", {}, make("meter", { min: 0, max: whole, value: step.ms, "aria-label": step.step }, `${step.ms} ms`)),
    make("td", { class: "n" }, `${step.ms.toFixed(1)} ms`)));
  const missing = found.ok ? [] : STEPS.slice(found.steps.length, found.steps.length + 1);
  for (const step of missing) rows.push(make("tr", {}, make("th", { scope: "row" }, step), make("td", { colspan: 2 }, "not reached")));
  const about = found.ok
    ? make("p", { class: "told" }, `${found.server?.name ?? "The server"} ${found.server?.version ?? ""} answers: ${found.tools} tools, ${found.resources} resources, ${found.prompts} prompts`)
    : make("p", { class: "error", role: "alert" }, [found.failure?.detail, found.failure?.hint].filter(Boolean).join(" "));
  const parts = [about, make("table", {}, make("tbody", {}, ...rows))];
  if (found.failure?.stderr?.length) parts.push(make("pre", { tabindex: 0, "aria-label": "stderr" }, found.failure.stderr.join("\n")));
  for (const missed of found.missed ?? []) {
    parts.push(make("p", { class: "notice warn" }, typeof missed === "string" ? missed : [missed.what ?? missed.kind, missed.path ?? missed.name, missed.hint ?? missed.proposal].filter(Boolean).map(String).join(": ")));
  }
  shown.replaceChildren(...parts);
}
