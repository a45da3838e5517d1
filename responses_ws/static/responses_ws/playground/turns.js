// The conversation as a tree of turns, and what is asked for the next one.

export class Turn {
  constructor(parent, input, settings) {
    Object.assign(this, { parent, input, settings, children: [], status: "in_progress" });
    parent?.children.push(this);
  }

  get path() { return [...(this.parent?.path ?? []), this]; }
  get id() { return this.response?.id; }
  get output() { return this.response?.output ?? []; }
  // What can be continued: an answer that there is.
  get isWhole() { return ["completed", "incomplete"].includes(this.status) && Boolean(this.id); }
  get words() {
    const [first] = this.input;
    return first.type === "function_call_output" ? `↳ ${first.output}` : textOf(first) || "picture";
  }
}

export function textOf(item) {
  if (typeof item.content === "string") return item.content;
  return (item.content ?? []).map((part) => part.text ?? part.refusal ?? "").join("");
}

// Everything that was said up to a turn, as a client sends it that names no response.
export function history(turn) {
  return (turn?.path ?? []).flatMap((one) => [...one.input, ...one.output]);
}

export function message(text, images = []) {
  const content = [
    ...(text ? [{ type: "input_text", text }] : []),
    ...images.map((image_url) => ({ type: "input_image", image_url })),
  ];
  return { type: "message", role: "user", content: images.length ? content : text };
}

// The body of a request: what is new after `parent`, by its id or with all that came before.
export function bodyFor(parent, input, settings) {
  const { model, instructions, tools, effort, summary, temperature, most, store, whole } = settings;
  const body = { model };
  if (instructions) body.instructions = instructions;
  if (parent && !whole) body.previous_response_id = parent.id;
  const items = whole ? [...history(parent), ...input] : input;
  const [only] = items;
  body.input = items.length === 1 && only.role === "user" && typeof only.content === "string" ? only.content : items;
  if (tools.length) body.tools = tools;
  if (effort) body.reasoning = { effort, ...(summary ? { summary } : {}) };
  else if (summary) body.reasoning = { summary };
  if (temperature !== null) body.temperature = temperature;
  if (most !== null) body.max_output_tokens = most;
  if (!store) body.store = false;
  return body;
}

// Tokens that the server was sent before: what the parent had read and written, where all of it goes again.
export function resent(parent, settings) {
  const usage = parent?.usage;
  return settings.whole && usage ? usage.input_tokens + usage.output_tokens : 0;
}
