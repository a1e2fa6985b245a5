// The last quarter of an hour as charts. Their numbers are parts of the page, which are renewed by page.js:
//
//   <section id="activity">  with <select id="chart-node">, <div id="charts">, <p id="chart-note">
//   <div id="chartdata" hidden>{…}</div>                   what REST answers to …/activity, or a problem
//   <div id="chartlatest" data-live="15" hidden>{…}</div>  the same, of the last steps only

import { make } from "./dom.js";
import { renew } from "./page.js";
import { extended } from "./series.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150, LEFT = 58, RIGHT = 8, TOP = 8, BOTTOM = 24;
const MOST_JOINED = 8;
const MOST_LINES = 5; // the rest of the reasons of errors are summed

// --- what is drawn: a title, a unit, and lines of equal length; null where nothing is known

function chartsOf(answer) {
  const { errors, processes, resident_bytes: resident, memory_limit_bytes: limit } = answer;
  const perSecond = (counts) => counts.map((each) => (each === null ? null : each / answer.step_s));
  const memory = [["used", resident]];
  if (limit) memory.push(["limit", resident.map((each) => (each === null ? null : limit))]);
  return [
    { title: "Calls", unit: rate, lines: [["calls", answer.calls_per_second]] },
    { title: "Errors and refusals", unit: rate, lines: some(errors).map(([name, counts]) => [name.replaceAll("_", " "), perSecond(counts)]), none: "None." },
    { title: "Duration of calls", unit: span, lines: [["half are shorter (p50)", answer.p50_s], ["99 % are shorter (p99)", answer.p99_s]] },
    { title: "Sessions and waiting callers", unit: number, lines: [["sessions", answer.sessions], ["waiting for a process", answer.waiting]] },
    { title: "Processes", unit: number, lines: Object.entries(processes), none: "None." },
    { title: "Memory of processes", unit: size, lines: memory, about: limit ? "" : "There is no limit." },
  ];
}

function some(series) {
  const every = Object.entries(series);
  if (every.length <= MOST_LINES) return every;
  const rest = every.slice(MOST_LINES - 1).map(([, counts]) => counts);
  const summed = rest[0].map((_, at) => (rest[0][at] === null ? null : rest.reduce((sum, counts) => sum + counts[at], 0)));
  return [...every.slice(0, MOST_LINES - 1), ["others", summed]];
}

const short = (value) => (value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value >= 1 ? value.toFixed(1) : value.toPrecision(2).replace(/\.?0+$/, ""));
const number = (value) => short(value);
const rate = (value) => `${short(value)}/s`;
const span = (value) => (value >= 60 ? `${short(value / 60)} min` : value >= 1 ? `${short(value)} s` : `${short(value * 1000)} ms`);
function size(value) {
  const step = value >= 2 ** 30 ? 3 : value >= 2 ** 20 ? 2 : value >= 2 ** 10 ? 1 : 0;
  return `${short(value / 1024 ** step)} ${["B", "KiB", "MiB", "GiB"][step]}`;
}

// --- drawing

function draw(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

const known = (values) => values.filter((each) => each !== null);
const last = (values) => known(values.slice(-3)).at(-1) ?? null;

function ceiling(most, unit) {
  // A round number, in the unit that is written: three lines below it are round too.
  const base = unit === size && most > 0 ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
  const least = unit === number ? 4 : unit === rate ? 0.4 : unit === span ? 0.004 : 1;
  const wanted = Math.max(most / base, least);
  const power = 10 ** Math.floor(Math.log10(wanted));
  return base * power * [1, 2, 4, 6, 8, 10].find((each) => each * power >= wanted * 0.999);
}

function picture(chart, width, minutes) {
  const most = Math.max(0, ...chart.lines.flatMap(([, values]) => known(values)));
  const top = ceiling(most, chart.unit);
  const steps = chart.lines[0][1].length;
  const x = (at) => LEFT + ((width - LEFT - RIGHT) * at) / (steps - 1);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const svg = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": `${chart.title}: ${sentence(chart)}` });
  for (const share of [0, 0.5, 1]) {
    svg.append(
      draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(top * share), y2: y(top * share) }),
      draw("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, share ? chart.unit(top * share) : "0"));
  }
  for (let ago = minutes; ago >= 0; ago -= 5) {
    const at = ((steps - 1) * (minutes - ago)) / minutes;
    const anchor = ago === minutes ? "start" : ago === 0 ? "end" : "middle";
    svg.append(draw("text", { x: x(at), y: HEIGHT - 6, "text-anchor": anchor }, ago === 0 ? "now" : `\u2212${ago} min`));
  }
  chart.lines.forEach(([, values], line) => svg.append(draw("path", { class: `line l${line}`, d: path(values, x, y) })));
  return svg;
}

function path(values, x, y) {
  // A gap is a gap: nothing is drawn where nothing is known.
  let d = "", begun = false;
  values.forEach((value, at) => {
    if (value !== null) {
      const alone = !begun && (values[at + 1] ?? null) === null;
      d += `${begun ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${alone ? "h2" : ""}`;
    }
    begun = value !== null;
  });
  return d;
}

function sentence(chart) {
  return chart.lines.map(([name, values]) => {
    const now = last(values), every = known(values);
    if (!every.length) return `${name}: no values`;
    return `${name}: ${now === null ? "nothing" : chart.unit(now)} now, at most ${chart.unit(Math.max(...every))}`;
  }).join("; ");
}

function figure(chart, answer, width) {
  const minutes = (answer.sessions.length * answer.step_s) / 60;
  const shown = make("figure", {}, make("figcaption", {}, chart.title));
  if (!chart.lines.length) {
    shown.append(make("p", { class: "soft" }, chart.none));
    return shown;
  }
  const legend = make("ul", { class: "legend", "aria-hidden": "true" }, ...chart.lines.map(([name, values], line) => {
    const key = draw("svg", { width: 22, height: 10, "aria-hidden": "true" }, draw("path", { class: `line l${line}`, d: "M1 5h20" }));
    const now = last(values);
    return make("li", {}, key, ` ${name}: `, make("strong", {}, now === null ? "–" : chart.unit(now)));
  }));
  shown.append(legend, picture(chart, width, minutes));
  if (chart.about) shown.append(make("p", { class: "soft" }, chart.about));
  return shown;
}

// The same in words: each minute's last known value.
function tableOf(charts, answer) {
  const lines = charts.flatMap((chart) => chart.lines.map(([name, values]) => [`${chart.title}: ${name}`, values, chart.unit]));
  const each = 60 / answer.step_s, steps = answer.sessions.length;
  const rows = [];
  for (let end = steps; end > 0; end -= each) {
    const at = new Date(Date.parse(answer.until) - (steps - end) * answer.step_s * 1000).toISOString().slice(11, 16);
    rows.push(make("tr", {}, make("th", { scope: "row" }, at), ...lines.map(([, values, unit]) => {
      const value = known(values.slice(Math.max(0, end - each), end)).at(-1);
      return make("td", { class: "n" }, value === undefined ? "–" : unit(value));
    })));
  }
  const head = make("tr", {}, ...["Minute, UTC", ...lines.map(([name]) => name)].map((name) => make("th", { scope: "col" }, name)));
  return make("table", {}, make("caption", {}, "At the end of each minute, the newest first"), make("thead", {}, head), make("tbody", {}, ...rows));
}

// --- the section on the page, which may be another element after the page has renewed itself

let answer = null;
let joined = 0; // how often it got its last steps only, without what a node whose clock is late has told since of earlier ones

function show() {
  const place = document.getElementById("charts");
  if (place === null || answer === null) return;
  const columns = place.clientWidth > 700 ? 2 : 1;
  const width = Math.max(240, Math.floor((place.clientWidth - 16 * (columns - 1)) / columns));
  const charts = chartsOf(answer);
  place.replaceChildren(...charts.map((chart) => figure(chart, answer, width)));
  const table = document.getElementById("chart-table");
  if (table.closest("details").open) table.replaceChildren(tableOf(charts, answer));
}

function offer(nodes) {
  const select = document.getElementById("chart-node");
  const offered = new Set([...select.options].map((each) => each.value));
  for (const node of nodes) if (!offered.has(node)) select.append(make("option", { value: node }, node));
}

const textOf = (id) => JSON.parse(document.getElementById(id)?.textContent.trim() || "null");

function take({ detail: renewed }) {
  if (renewed.includes("chartdata")) {
    joined = 0;
    return takeAll(textOf("chartdata"));
  }
  if (!renewed.includes("chartlatest")) return show(); // the page may have been replaced
  const latest = textOf("chartlatest");
  if (latest === null || latest.problem) return takeAll(latest);
  const all = answer === null || joined >= MOST_JOINED ? null : extended(answer, latest);
  if (all === null) return renew(["chartdata"]);
  joined += 1;
  takeAll(all);
}

function takeAll(told) {
  if (told === null) return show(); // the page has been replaced
  let note = told.problem ?? "";
  if (!told.problem) {
    answer = told;
    offer([...answer.nodes, ...answer.silent_nodes]);
    const missing = [...answer.silent_nodes, ...answer.summed_nodes];
    if (missing.length) note = `What these nodes have is missing: ${missing.join(", ")}.`;
  }
  document.getElementById("chart-note").textContent = note;
  show();
}

// The node is in the address, from which page.js asks.
function choose(node) {
  const here = new URL(location.href);
  if (node) here.searchParams.set("node", node);
  else here.searchParams.delete("node");
  history.replaceState(null, "", here);
  renew(["chartdata"]);
}

document.addEventListener("renewed", take);
document.addEventListener("change", (event) => event.target.id === "chart-node" && choose(event.target.value));
document.addEventListener("toggle", (event) => event.target.id === "chart-details" && show(), true);
addEventListener("resize", show);
renew(["chartdata"]);
