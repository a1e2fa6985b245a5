// The TypeScript SDK 2.x; its default is the handshake, and with the argument "auto" it asks first.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const headers = { Authorization: `Bearer ${process.env.KEY}` };

async function connect() {
  const options = { capabilities: { elicitation: {} } };
  if (process.argv[2] === "auto") options.versionNegotiation = { mode: "auto" };
  const client = new Client({ name: "test", version: "1" }, options);
  client.setRequestHandler("elicitation/create", async () => ({ action: "accept", content: { name: "Ada" } }));
  const transport = new StreamableHTTPClientTransport(new URL(process.env.URL), { requestInit: { headers } });
  await client.connect(transport);
  return client;
}

async function connectToTry() {
  const client = await connect();
  const call = async (name, args, timeout) => {
    const options = timeout ? { timeout } : undefined;
    return (await client.callTool({ name, arguments: args }, options)).content[0].text;
  };
  return { call, close: () => client.close() };
}

async function main() {
  const client = await connect();
  const steps = [];
  const text = await client.callTool({ name: "test_simple_text", arguments: {} });
  const resources = await client.listResources();
  await client.callTool(
    { name: "test_tool_with_progress", arguments: {} },
    { onprogress: ({ progress }) => steps.push(progress) },
  );
  const hello = await client.callTool({ name: "test_input_required_result_elicitation", arguments: {} });
  await client.close();
  console.log(
    JSON.stringify({
      text: text.content[0].text,
      resources: resources.resources.map(({ uri }) => uri),
      progress: steps,
      elicitation: hello.content[0].text,
    }),
  );
}

if (process.env.TRIAL) await (await import(process.env.TRIALS)).run(connectToTry);
else await main();
