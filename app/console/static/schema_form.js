// Forms from JSON Schema. What cannot be drawn is a field for JSON.

import { make } from "./dom.js";

const MAX_DEPTH = 8;
const MAX_FIELDS = 500; // that are made at once: a schema may refer to itself, and branch
const MAX_CHOICES = 1000;
const TOO_LARGE = new Error("The schema has too many fields");
let count = 0;
let left = 0;

// `schema` of an object. Returns { element, read }: `read` is the value, or throws an Error with `field`.
export function formOf(schema) {
  const whole = typeof schema === "object" && schema !== null ? schema : {};
  return afresh(() => objectField(whole, whole, "", 0), "Arguments, as JSON", false);
}

// A field, or one for JSON if that would be too many.
function afresh(field, label, required) {
  left = MAX_FIELDS;
  try {
    return field();
  } catch {
    const { element, read } = jsonField({}, label, required);
    return { element, read: () => read() ?? {} };
  }
}

// What has another type than a schema should have cannot be drawn.
function fieldOf(schema, whole, label, required, depth) {
  if (left-- <= 0) throw TOO_LARGE;
  try {
    return drawn(schema, whole, label, required, depth);
  } catch (error) {
    if (error === TOO_LARGE) throw error;
    return jsonField({}, label, required);
  }
}

function drawn(schema, whole, label, required, depth) {
  const found = resolved(schema, whole, depth);
  if (depth > MAX_DEPTH || typeof found !== "object" || found === null) return jsonField({}, label, required);
  const choices = found.enum ?? constants(found);
  if (choices !== null && (!Array.isArray(choices) || choices.length > MAX_CHOICES)) return jsonField(found, label, required);
  if (choices !== null) return choiceField(found, choices, label, required);
  const several = found.oneOf ?? found.anyOf;
  if (several !== undefined) return variantField(found, several, whole, label, required, depth);
  switch (Array.isArray(found.type) ? found.type.filter((each) => each !== "null")[0] : found.type) {
    case "string": return textField(found, label, required);
    case "integer":
    case "number": return numberField(found, label, required);
    case "boolean": return choiceField(found, [true, false], label, required);
    case "object": return found.properties ? boxed(objectField(found, whole, label, depth + 1), label, required, found) : jsonField(found, label, required);
    case "array": return arrayField(found, whole, label, required, depth);
    default: return jsonField(found, label, required);
  }
}

function resolved(schema, whole, depth) {
  let found = schema;
  for (let hops = 0; hops <= MAX_DEPTH && typeof found?.$ref === "string"; hops++) {
    const path = found.$ref.replace(/^#\/?/, "").split("/").filter(Boolean);
    found = path.map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~")).reduce((into, name) => own(into, name), whole);
  }
  const options = found?.anyOf?.filter((each) => each?.type !== "null");
  if (options?.length === 1 && depth <= MAX_DEPTH) return { ...found, anyOf: undefined, ...resolved(options[0], whole, depth + 1) };
  return found;
}

function own(value, name) {
  return typeof value === "object" && value !== null && Object.hasOwn(value, name) ? value[name] : undefined;
}

function constants(schema) {
  if (schema.const !== undefined) return [schema.const];
  const several = schema.oneOf ?? schema.anyOf;
  return several?.length && several.every((each) => each?.const !== undefined) ? several.map((each) => each.const) : null;
}

function labelled(input, label, required, schema) {
  const id = `field-${++count}`;
  input.id = id;
  const words = make("label", { for: id }, (schema.title ?? label) + (required ? " *" : ""));
  if (schema.description) words.append(make("span", { class: "help" }, String(schema.description)));
  return make("div", { class: "field" }, words, input);
}

function wrong(words, input) {
  input.setAttribute("aria-invalid", "true");
  return Object.assign(new Error(words), { field: input });
}

function textField(schema, label, required) {
  const types = { email: "email", uri: "url", date: "date", password: "password" };
  const isLong = schema.maxLength > 300 || schema.format === "textarea";
  const input = isLong ? make("textarea", { rows: 4 }) : make("input", { type: types[schema.format] ?? "text", autocomplete: "off", spellcheck: "false" });
  if (schema.maxLength) input.maxLength = schema.maxLength;
  if (schema.examples?.length) input.placeholder = String(schema.examples[0]);
  if (schema.default !== undefined && schema.default !== null) input.value = String(schema.default);
  const read = () => {
    input.removeAttribute("aria-invalid");
    if (input.value === "" && !required) return undefined;
    if (input.value === "" && schema.default !== "") throw wrong(`${label}: enter something`, input); // "" can be said as JSON
    if (input.value.length < (schema.minLength ?? 0)) throw wrong(`${label}: at least ${schema.minLength} characters`, input);
    if (!input.checkValidity()) throw wrong(`${label}: ${input.validationMessage}`, input);
    return input.value;
  };
  return { element: labelled(input, label, required, schema), read };
}

function numberField(schema, label, required) {
  const input = make("input", { type: "number", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum });
  if (schema.default !== undefined && schema.default !== null) input.value = String(schema.default);
  const read = () => {
    input.removeAttribute("aria-invalid");
    if (input.value === "" && input.validity.valid) {
      if (required) throw wrong(`${label}: enter a number`, input);
      return undefined;
    }
    if (!input.checkValidity()) throw wrong(`${label}: ${input.validationMessage}`, input);
    return Number(input.value);
  };
  return { element: labelled(input, label, required, schema), read };
}

function choiceField(schema, choices, label, required) {
  const select = make("select");
  const titles = schema.enumNames ?? (schema.oneOf ?? schema.anyOf)?.map((each) => each.title) ?? [];
  if (!required || schema.default === undefined) select.append(make("option", { value: "" }, required ? "choose…" : "–"));
  choices.forEach((choice, number) => select.append(make("option", { value: number, selected: choice === schema.default }, String(titles[number] ?? (typeof choice === "string" ? choice : JSON.stringify(choice))))));
  const read = () => {
    select.removeAttribute("aria-invalid");
    if (select.value !== "") return choices[Number(select.value)];
    if (required) throw wrong(`${label}: choose one`, select);
    return undefined;
  };
  return { element: labelled(select, label, required, schema), read };
}

function jsonField(schema, label, required) {
  const input = make("textarea", { rows: 4, spellcheck: "false", placeholder: "JSON" });
  if (schema.default !== undefined) input.value = JSON.stringify(schema.default, null, 2);
  const read = () => {
    input.removeAttribute("aria-invalid");
    if (input.value.trim() === "") {
      if (required) throw wrong(`${label}: enter JSON`, input);
      return undefined;
    }
    try {
      return JSON.parse(input.value);
    } catch (error) {
      throw wrong(`${label}: ${error.message}`, input);
    }
  };
  return { element: labelled(input, label, required, schema), read };
}

function objectField(schema, whole, label, depth) {
  const needed = new Set(Array.isArray(schema.required) ? schema.required : []);
  const properties = typeof schema.properties === "object" && schema.properties !== null ? schema.properties : undefined;
  const fields = Object.entries(properties ?? {}).map(([name, each]) => [name, fieldOf(each, whole, name, needed.has(name), depth)]);
  const more = properties === undefined || typeof schema.additionalProperties === "object" ? jsonField({ title: fields.length ? "More members, as JSON" : "Arguments, as JSON" }, label, false) : null;
  const element = make("div", {}, ...fields.map(([, field]) => field.element), ...(more ? [more.element] : []));
  const read = () => {
    const value = {};
    for (const [name, field] of fields) {
      const found = field.read();
      if (found !== undefined) Object.defineProperty(value, name, { value: found, enumerable: true }); // also __proto__
    }
    return { ...value, ...more?.read() };
  };
  return { element, read };
}

function boxed(inner, label, required, schema) {
  const box = make("fieldset", {}, make("legend", {}, schema.title ?? label), inner.element);
  const read = () => {
    const value = inner.read();
    return Object.keys(value).length || required ? value : undefined;
  };
  return { element: box, read };
}

function variantField(schema, several, whole, label, required, depth) {
  const made = (number) => fieldOf(several[number], whole, several[number]?.title ?? `${label} (${number + 1})`, false, depth + 1);
  let field; // of the variant that is chosen
  const select = make("select");
  if (!required) select.append(make("option", { value: "" }, "–"));
  several.forEach((each, number) => select.append(make("option", { value: number }, each?.title ?? each?.type ?? `variant ${number + 1}`)));
  const place = make("div");
  const show = (variant) => {
    field = variant;
    place.replaceChildren(...(field === undefined ? [] : [field.element]));
  };
  select.addEventListener("change", () => show(select.value === "" ? undefined : afresh(() => made(Number(select.value)), label, false)));
  if (required) show(made(0));
  const box = make("fieldset", {}, make("legend", {}, schema.title ?? label), labelled(select, "Which", required, { description: schema.description }), place);
  return { element: box, read: () => field?.read() };
}

function arrayField(schema, whole, label, required, depth) {
  const items = [];
  const list = make("div");
  const add = make("button", { type: "button", class: "quiet" }, `Add to ${label}`);
  const made = () => fieldOf(schema.items ?? {}, whole, `${label} ${items.length + 1}`, true, depth + 1);
  const grow = (field) => {
    const remove = make("button", { type: "button", class: "quiet" }, "Remove");
    const row = make("div", {}, field.element, remove);
    const item = { field, row };
    remove.addEventListener("click", () => {
      items.splice(items.indexOf(item), 1);
      row.remove();
      add.focus();
    });
    items.push(item);
    list.append(row);
  };
  add.addEventListener("click", () => grow(afresh(made, label, true)));
  for (let number = 0; number < Math.min(schema.minItems ?? 0, 20); number++) grow(made());
  const words = schema.description ? [make("p", { class: "hint" }, String(schema.description))] : [];
  const box = make("fieldset", {}, make("legend", {}, (schema.title ?? label) + (required ? " *" : "")), ...words, list, add);
  return { element: box, read: () => (items.length || required ? items.map((item) => item.field.read()) : undefined) };
}
