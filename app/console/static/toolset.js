// The members of a new toolset, from the ticks and prefixes of its form.

import { make } from "./dom.js";

const form = document.getElementById("toolset");
const members = make("input", { type: "hidden", name: "members", "data-as": "json", value: "[]" });
form?.append(members);

function gather() {
  const ticked = [...form.querySelectorAll("[data-member]:checked")];
  members.value = JSON.stringify(ticked.map((tick) => {
    const prefix = form.querySelector(`[data-prefix="${CSS.escape(tick.dataset.member)}"]`).value.trim();
    return { backend: tick.dataset.member, ...(prefix ? { prefix } : {}) };
  }));
}

form?.addEventListener("input", gather);
