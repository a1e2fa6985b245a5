// Preloaded into the suite: the scenario `server-stateless` gives a call up ten times later than after half a second.
const GIVEN_UP_AFTER_MS = [500, 600, 1000];
const wait = globalThis.setTimeout;
globalThis.setTimeout = (then, ms, ...rest) => wait(then, GIVEN_UP_AFTER_MS.includes(ms) ? 10 * ms : ms, ...rest);
