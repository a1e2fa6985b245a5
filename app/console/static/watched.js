// The banner: while the messages of a session of this tenant are being looked at, every page of it says so.

import { make } from "./dom.js";
import { base, rest } from "./rest.js";

const EVERY_MS = 30_000;
const place = document.getElementById("watched");
let shown = "";

async function look() {
  if (document.hidden) return;
  let open;
  try {
    open = (await rest("GET", `/tenants/${place.dataset.tenant}/inspections`)).items.filter((each) => each.ended_at === null);
  } catch {
    return; // the page itself says what does not work
  }
  const now = open.map((each) => each.id).join();
  if (now === shown) return; // what a screen reader has said once is not said again
  shown = now;
  place.replaceChildren(...open.map((each) => make("p", { class: "notice warn" },
    `Messages of ${each.session === null ? `the next sessions of ${each.backend}` : `session ${each.session}`} are being inspected${each.payloads ? ", with what they say" : ""}, until ${each.ends_at.slice(11, 16)} UTC, by ${each.issuer} ${each.subject} of ${each.opener_tenant}: ${each.reason} `,
    make("a", { href: `${base}/console/tenants/${encodeURIComponent(each.tenant)}/inspections/${encodeURIComponent(each.id)}` }, "Inspect"))));
}

if (place !== null) {
  const again = () => look().finally(() => setTimeout(again, EVERY_MS));
  again();
  document.addEventListener("visibilitychange", look);
  document.addEventListener("inspections", look);
}
