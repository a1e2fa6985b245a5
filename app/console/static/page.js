// What every page has: buttons and forms that are requests to REST, and parts that renew themselves.
//
//   <button data-method="DELETE" data-path="/tenants/…" data-ask="Really?" data-done="/console/…" data-body="{…}">
//   <form data-method="POST" data-path="/tenants/…" data-done="/console/…">   fields: see `bodyOf`
//   <section data-live="10" id="…">                                           every ten seconds, while it is looked at

import { confirmed, make, tell } from "./dom.js";
import { rest, wordsOf } from "./rest.js";

const parser = new DOMParser();
// The only markup that is ever parsed is our own page, which is escaped where it was made; its scripts do not run.
const ours = window.trustedTypes?.createPolicy("console", { createHTML: (text) => text }) ?? { createHTML: (text) => text };

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-method]");
  if (button === null || button.form?.dataset.method) return;
  const { method, path, ask, done, body } = button.dataset;
  if (ask && !(await confirmed(ask, button.textContent.trim()))) return;
  await busy(button, async () => {
    const answer = await rest(method, path, body === undefined ? undefined : JSON.parse(body));
    if (answer.failure) return tell(`Nothing was changed: ${answer.failure.detail}`, "error");
    go(done, answer.applied === false ? "Nothing was changed: there is nothing newer." : `${button.textContent.trim()}: done`);
  });
});

const sent = new WeakSet(); // forms whose answer has not come: pressed again, they do not ask again

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-method]");
  if (form === null) return;
  event.preventDefault();
  if (sent.has(form)) return;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  form.querySelector(".error")?.remove();
  let body;
  try {
    body = bodyOf(form);
    if ("changes" in form.dataset && Object.keys(body).length === 0) return tell("Nothing was changed.");
  } catch (error) {
    complain(form, error.message, error.fields ?? []);
    return;
  }
  sent.add(form);
  await busy(event.submitter ?? form.querySelector("button"), async () => {
    const answer = await rest(form.dataset.method, form.dataset.path, body);
    const then = new CustomEvent("answered", { detail: answer, cancelable: true, bubbles: true });
    if (form.dispatchEvent(then)) go((form.dataset.done ?? "").replace("{name}", encodeURIComponent(answer.name ?? "")), "Saved");
  }, (error) => {
    const named = (error.body?.errors ?? []).map((each) => (each.pointer ?? "").replace(/^#?\//, "").replaceAll("/", "."));
    const details = (error.body?.errors ?? []).map((each) => `${each.pointer ?? each.parameter ?? ""} ${each.detail}`.trim());
    complain(form, [wordsOf(error), ...details].join(" – "), named);
  });
  sent.delete(form);
});

async function busy(button, work, failed = (error) => tell(wordsOf(error), "error")) {
  button.disabled = true;
  try {
    await work();
  } catch (error) {
    failed(error);
  } finally {
    button.disabled = false;
  }
}

function go(done, words) {
  if (done) location.assign(done);
  else renew(["main"]).then(() => tell(words));
}

function complain(form, words, fields) {
  const alert = make("p", { class: "error", role: "alert", tabindex: "-1" }, words);
  form.prepend(alert);
  for (const name of fields) {
    const field = form.elements.namedItem(name) ?? form.elements.namedItem(name.split(".")[0]);
    field?.setAttribute?.("aria-invalid", "true");
    field?.closest?.("details")?.setAttribute("open", "");
  }
  alert.focus();
}

// The body of a form. A field is a string, or what its data-as says: number, number-or-word, lines (an array), json, pairs
// (NAME=value, an object), json-members (likewise, as JSON), flag, network (a word, or HOST:PORT in each line).
// Empty fields are left out, unless data-empty says what they
// mean ("null", "[]"). `a.b` is a member of `a`.
//
// With data-changes it is a merge patch: only fields that differ from what the page came with, and null for what is gone.
export function bodyOf(form) {
  const body = {}, changes = "changes" in form.dataset;
  for (const field of form.elements) {
    if (!field.name || field.disabled || (field.type === "radio" && !field.checked)) continue;
    if (changes && isAsBefore(field)) continue;
    const value = changes ? changeOf(field) : valueOf(field, field.value);
    if (value === undefined) continue;
    const names = field.name.split(".");
    const last = names.pop();
    let into = body;
    for (const name of names) into = into[name] ??= {};
    if (field.type === "checkbox" && field.value !== "on") (into[last] ??= []).push(...(field.checked ? [field.value] : []));
    else into[last] = value;
  }
  return body;
}

function isAsBefore(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked === field.defaultChecked;
  return field.value === valueBefore(field);
}

function valueBefore(field) {
  if (field.tagName !== "SELECT") return field.defaultValue;
  return ([...field.options].find((option) => option.defaultSelected) ?? field.options[0]).value;
}

// Of objects the members that are gone are null; any other empty field restores the default.
function changeOf(field) {
  const value = valueOf(field, field.value);
  if (!["pairs", "json-members"].includes(field.dataset.as)) return value ?? null;
  const before = valueOf(field, field.defaultValue) ?? {}, now = value ?? {};
  const gone = Object.keys(before).filter((name) => !Object.hasOwn(now, name)); // every object has a `constructor`
  return { ...now, ...Object.fromEntries(gone.map((name) => [name, null])) };
}

function valueOf(field, text) {
  if (field.type === "checkbox") return field.checked;
  const empty = field.dataset.empty;
  if (text.trim() === "") return empty === undefined ? undefined : JSON.parse(empty);
  const lines = () => text.split("\n").map((line) => line.trim()).filter(Boolean);
  const wrong = (words) => Object.assign(new Error(`${field.name}: ${words}`), { fields: [field.name] });
  switch (field.dataset.as) {
    case "number": return Number(text);
    case "number-or-word": return Number.isNaN(Number(text)) ? text.trim() : Number(text);
    case "flag": return text === "true";
    case "lines": return lines();
    case "json":
    case "json-members":
      try {
        return JSON.parse(text);
      } catch (error) {
        throw wrong(error.message);
      }
    case "pairs":
      return Object.fromEntries(lines().map((line) => {
        const at = line.indexOf("=");
        if (at < 1) throw wrong("write NAME=value in each line");
        return [line.slice(0, at), line.slice(at + 1)];
      }));
    case "network": {
      const words = lines(), allow = words.filter((word) => word !== "web");
      return words.length === 1 && !words[0].includes(":") ? words[0] : { allow, web: allow.length < words.length };
    }
    default: return text;
  }
}

// --- parts that renew themselves

// Scripts of single pages listen at the document, since their elements may be replaced here. After it "renewed" is sent.
const tags = new Map(); // what was asked for -> its ETag

// The parts of these ids are asked for again: only they, unless one is the whole page.
export async function renew(ids) {
  const whole = ids.includes("main"), headers = whole ? {} : { "X-Renew": ids.join(" ") };
  const asked = `${location.href} ${ids}`;
  if (!whole && tags.has(asked)) headers["If-None-Match"] = tags.get(asked);
  const parts = () => ids.map((id) => document.getElementById(id)).filter((part) => part !== null);
  let response, text;
  try {
    response = await fetch(location.href, { credentials: "same-origin", headers });
    text = await response.text();
  } catch {
    for (const part of parts()) part.dataset.stale = "yes";
    return;
  }
  if (response.redirected) location.reload(); // signed out
  for (const part of parts()) delete part.dataset.stale;
  if (!response.ok) return; // 304 too: nothing has changed
  if (!whole) tags.set(asked, response.headers.get("ETag"));
  else tags.clear();
  const fresh = parser.parseFromString(ours.createHTML(text), "text/html");
  for (const part of parts()) {
    const other = fresh.getElementById(part.id);
    if (other === null) continue;
    if (part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")) {
      tags.delete(asked); // it is shown the next time
      continue;
    }
    const held = part.contains(document.activeElement) ? place(part, document.activeElement) : null;
    const open = new Set([...part.querySelectorAll("details[open][id]")].map((each) => each.id));
    part.replaceChildren(...other.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (held !== null) [...part.querySelectorAll(held.kind)][held.number]?.focus();
  }
  document.dispatchEvent(new CustomEvent("renewed", { detail: ids }));
}

// Where the focus is, so that it stays there.
function place(part, element) {
  const kind = element.tagName.toLowerCase();
  return { kind, number: [...part.querySelectorAll(kind)].indexOf(element) };
}

// All browsers ask at the same moments, multiples of `data-live` of the gateway's clock: so what one of them has caused to
// be made is good for the others. Nobody asks for a page in the background; it is renewed when somebody looks again.
const skew = Number(document.body.dataset.now) * 1000 - Date.now();
const clock = () => (Date.now() + skew) / 1000;
const live = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.id, { every: Number(part.dataset.live), at: clock() }]));
let timer;

async function renewDue() {
  clearTimeout(timer);
  const now = clock();
  const due = [...live].filter(([, { every, at }]) => Math.floor(now / every) > Math.floor(at / every)).map(([id]) => id);
  if (due.length && !document.hidden && document.querySelector("dialog[open]") === null) {
    for (const id of due) live.get(id).at = now;
    await renew(due);
  }
  wait();
}

function wait() {
  clearTimeout(timer);
  const least = Math.min(...[...live.values()].map(({ every }) => every));
  if (Number.isFinite(least)) timer = setTimeout(renewDue, (least - (clock() % least)) * 1000 + 20);
}

wait();
document.addEventListener("visibilitychange", () => document.hidden || renewDue());

for (const field of document.querySelectorAll("[data-copy]")) {
  const button = make("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(field.dataset.copy).textContent);
    tell("Copied");
  });
  field.append(button);
}
