// Server-sent events in the body of a response, which EventSource cannot ask for.

// Each event that has data (https://html.spec.whatwg.org/multipage/server-sent-events.html).
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let kind = "message";
  let data = [];
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line.startsWith("event:")) kind = line.slice(6).trim();
      else if (line === "") {
        if (data.length && data.join("") !== "") yield { kind, data: data.join("\n") };
        [kind, data] = ["message", []];
      }
    }
  }
}
