// A pasted configuration: what it would add, and adding it.

import { make } from "./dom.js";
import { rest, wordsOf } from "./rest.js";

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("#paste");
  if (form === null) return;
  event.preventDefault();
  const shown = document.getElementById("imported");
  const apply = event.submitter?.value === "yes";
  shown.replaceChildren(make("progress", { "aria-label": "Import" }));
  try {
    const answer = await rest("POST", form.dataset.path, { document: form.elements.document.value, apply });
    show(shown, answer, apply);
  } catch (error) {
    shown.replaceChildren(make("p", { class: "error", role: "alert" }, wordsOf(error)));
  }
});

function show(shown, answer, apply) {
  const rows = answer.entries.map((entry) => make("tr", {},
    make("th", { scope: "row" }, entry.name ?? entry.source),
    make("td", {}, entry.outcome),
    make("td", { class: "long" }, entry.becomes === null ? "" : make("code", {}, entry.becomes)),
    make("td", { class: "long" }, [...entry.needs, ...entry.notes].join("; ")),
    make("td", { class: "long" }, entry.problems.map((each) => (typeof each === "string" ? each : each.detail ?? JSON.stringify(each))).join(" "))));
  const head = make("thead", {}, make("tr", {}, ...["Server", "Outcome", "Becomes", "Needs and notes", "Problems"].map((words) => make("th", { scope: "col" }, words))));
  shown.replaceChildren(
    make("p", { class: apply ? "told" : "notice warn" }, apply ? "Done." : "Nothing was changed yet."),
    make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, make("table", {}, head, make("tbody", {}, ...rows))));
}
