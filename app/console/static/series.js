// Series of steps, as REST answers to …/activity, that are kept up to date with their last steps only.

// `known` with the steps of `latest`, of which it may have some already; null if some between are missing, or if they are
// of other nodes.
export function extended(known, latest) {
  if (String(known.nodes) !== String(latest.nodes)) return null;
  const moved = Math.round((Date.parse(latest.until) - Date.parse(known.until)) / 1000 / latest.step_s);
  const steps = known.sessions.length, added = latest.sessions.length;
  if (moved < 0 || moved > added) return null;
  const joined = (before, after) => [...before.slice(moved, steps - added + moved), ...after];
  const since = new Date(Date.parse(latest.until) - steps * latest.step_s * 1000).toISOString();
  const all = { ...latest, since };
  for (const [name, value] of Object.entries(latest)) {
    if (name.endsWith("nodes")) continue;
    if (Array.isArray(value)) all[name] = joined(known[name], value);
    else if (typeof value === "object" && value !== null) all[name] = byName(known[name], value, joined, known.sessions, latest.sessions);
  }
  return all;
}

// The largest first. One that has no values is zero, but for steps of which nothing is known.
function byName(known, latest, joined, knownAt, latestAt) {
  const zeros = (at) => at.map((each) => (each === null ? null : 0));
  const names = [...new Set([...Object.keys(known), ...Object.keys(latest)])].sort();
  const every = names.map((name) => [name, joined(known[name] ?? zeros(knownAt), latest[name] ?? zeros(latestAt))]);
  const sum = ([, values]) => values.reduce((total, each) => total + each, 0);
  return Object.fromEntries(every.filter(sum).sort((one, other) => sum(other) - sum(one)));
}
