// As trials.py, for the programs in JavaScript: `connect` gives { call, close }, and `call` may get a time-out.
const AT_A_TIME = 5;
const KINDS = ["count", "tell", "fail"];
const sorted = (texts) => texts.map(Number).sort((a, b) => a - b);
const many = (count, make) => Promise.all(Array.from({ length: count }, (_, number) => make(number)));

async function closeAfterTimeout(connect, times) {
  async function once() {
    const { call, close } = await connect();
    const text = await call("wait", {}, 300).catch((error) => String(error));
    if (!/tim/i.test(text)) throw new Error(text);
    await close();
  }
  for (let ended = 0; ended < times; ended += AT_A_TIME) await many(Math.min(AT_A_TIME, times - ended), once);
  return times;
}

async function atOnce(connect, times) {
  const { call, close } = await connect();
  const numbers = await many(times, () => call("count", { ms: 200 }));
  await close();
  return sorted(numbers);
}

async function large(connect, times) {
  const { call, close } = await connect();
  const found = await call("big", { bytes: times * 2 ** 20, ms: 20_000 }).then((text) => text.length, String);
  await close();
  return found;
}

async function state(connect, times) {
  const { call, close } = await connect();
  const numbers = [];
  while (numbers.length < times) {
    numbers.push(await call(KINDS[numbers.length % 3], {}));
    numbers.push(...(await many(3, (number) => call(KINDS[number], { ms: 5 }))));
  }
  await close();
  return sorted(numbers);
}

const TRIALS = { close_after_timeout: closeAfterTimeout, at_once: atOnce, large, state };

export async function run(connect) {
  console.log(JSON.stringify(await TRIALS[process.env.TRIAL](connect, Number(process.env.TIMES))));
}
