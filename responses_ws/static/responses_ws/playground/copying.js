// A turn as somebody would write it elsewhere. The key is never in it: it would live for minutes only.

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function python(value, indent = 0) {
  const pad = " ".repeat(indent + 4);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  if (!entries.length) return isList ? "[]" : "{}";
  const lines = entries.map(([name, inner]) => `${pad}${isList ? "" : `${JSON.stringify(name)}: `}${python(inner, indent + 4)},`);
  return `${isList ? "[" : "{"}\n${lines.join("\n")}\n${" ".repeat(indent)}${isList ? "]" : "}"}`;
}

const named = (body, indent) => Object.entries(body).map(([name, value]) => `${" ".repeat(indent)}${name}=${python(value, indent)},`).join("\n");

export const FORMS = {
  curl: (api, body) => `curl -N ${api}/responses \\
  -H "Authorization: Bearer $RESPONSES_WS_KEY" \\
  -H "Content-Type: application/json" \\
  -d ${quoted(JSON.stringify({ ...body, stream: true }, null, 2))}
`,
  python: (api, body) => `# pip install openai
import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(api)}, api_key=os.environ["RESPONSES_WS_KEY"])
response = client.responses.create(
${named(body, 4)}
)
print(response.output_text)
`,
  websocket: (api, body) => `# pip install "openai[realtime]"
import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(api)}, api_key=os.environ["RESPONSES_WS_KEY"])
with client.responses.connect() as connection:
    connection.response.create(
${named(body, 8)}
    )
    for event in connection:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            break
`,
  codex: (api, body) => `# ~/.codex/config.toml
model = ${JSON.stringify(body.model)}
model_provider = "responses_ws"

[model_providers.responses_ws]
name = "responses_ws"
base_url = ${JSON.stringify(api)}
wire_api = "responses"
env_key = "RESPONSES_WS_KEY"
supports_websockets = true
`,
};

export const lines = (turns) => turns.flatMap((turn) => turn.exchange.events.map(({ direction, ms, size, body }) =>
  JSON.stringify({ response_id: turn.id ?? null, way: turn.exchange.way, direction, ms: Math.round(ms * 1000) / 1000, size, event: body }))).join("\n") + "\n";
