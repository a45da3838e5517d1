// The three doors of the API. Each takes a request body and tells an exchange what went out and what came in.

const ENDS = new Set(["response.completed", "response.incomplete", "response.failed", "error"]);
const encoder = new TextEncoder();

export const callsOf = (items) => (items ?? []).filter((item) => item.type === "function_call");

// One request and everything that came back for it. `took(event)` is called for each thing that the server says.
export class Exchange {
  constructor(way, took = () => {}) {
    Object.assign(this, { way, took, events: [], sentBytes: 0, receivedBytes: 0 });
  }

  sent(text, body) {
    const at = performance.now();
    this.sentAt ??= at;
    this.sentBytes += this.#record("out", text, body, at).size;
  }

  received(text, body) {
    const at = performance.now();
    const { type } = body;
    this.receivedBytes += this.#record("in", text, body, at).size;
    if (type === "response.created") this.createdAt ??= at;
    if (type.endsWith(".delta")) {
      this.firstAt ??= at;
      this.lastAt = at;
    }
    if (body.response?.usage) this.usage = body.response.usage;
    this.took(body);
  }

  ended() {
    this.endedAt = performance.now();
  }

  // Milliseconds from the request on.
  get created() { return this.createdAt - this.sentAt; }
  get first() { return this.firstAt - this.sentAt; }
  get total() { return this.endedAt - this.sentAt; }
  get rate() {
    const tokens = this.usage?.output_tokens;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    // Of what comes at once nothing can be said.
    return tokens > 1 && seconds > 0.05 ? (tokens - 1) / seconds : undefined;
  }

  #record(direction, text, body, at) {
    const event = { direction, type: body.type ?? "request", size: encoder.encode(text).length, ms: at - this.sentAt, body };
    this.events.push(event);
    return event;
  }
}

// What ended without an answer of the server's own, in the shape of its errors.
export function failure(message, code = "connection") {
  return { type: "error", error: { type: "client_error", code, message } };
}

export class Socket extends EventTarget {
  #socket = null;
  #running = null;
  #last = null;
  state = "closed";
  detail = "not opened yet";

  constructor(url) {
    super();
    this.url = url.replace(/^http/, "ws") + "/responses";
  }

  get isOpen() { return this.#socket?.readyState === WebSocket.OPEN; }

  open(key, { append = false } = {}) {
    this.close("replaced");
    const protocols = ["responses", `openai-insecure-api-key.${key}`];
    if (append) protocols.push("openai-beta.responses_rollout-v1");
    const began = performance.now();
    const socket = new WebSocket(this.url, protocols);
    this.#socket = socket;
    this.#tell("connecting", "connecting");
    return new Promise((resolve, reject) => {
      socket.addEventListener("open", () => {
        this.connectMs = performance.now() - began;
        this.#tell("open", `connected in ${this.connectMs.toFixed(0)} ms`);
        resolve();
      });
      socket.addEventListener("message", ({ data }) => this.#heard(data));
      socket.addEventListener("close", ({ code, reason }) => {
        if (this.#socket !== socket) return;
        this.#socket = null;
        const detail = `closed ${code}${reason ? `, ${reason}` : ""}`;
        this.#tell("closed", detail);
        this.#settle(failure(`The connection was ${detail}.`));
        reject(new Error(code === 1006 ? "The handshake was refused, or the server cannot be reached." : detail));
      });
    });
  }

  // The only way to cancel what runs.
  close(detail = "closed by you") {
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.close(1000);
    this.#tell("closed", detail);
    this.#settle(failure("Cancelled: the connection was closed.", "cancelled"));
  }

  run(body, exchange) {
    return new Promise((resolve) => {
      this.#running = { exchange, resolve };
      this.#last = exchange;
      this.say({ type: "response.create", ...body });
    });
  }

  // Another client event, of the response that runs.
  say(event) {
    const text = JSON.stringify(event);
    this.#running?.exchange.sent(text, event);
    this.#socket.send(text);
  }

  #heard(text) {
    const event = JSON.parse(text);
    if (!this.#running) {
      // A steer that waits for outputs is told of behind the end.
      this.#last?.received(text, event);
      return;
    }
    const { exchange, resolve } = this.#running;
    exchange.received(text, event);
    // Its successor follows by itself, unless calls have to be answered first.
    const goesOn = event.response?.incomplete_details?.reason === "steered" && !callsOf(event.response.output).length;
    if (ENDS.has(event.type) && !goesOn) {
      this.#running = null;
      exchange.ended();
      resolve();
    }
  }

  #settle(event) {
    if (!this.#running) return;
    const { exchange, resolve } = this.#running;
    this.#running = null;
    exchange.received("", event);
    exchange.ended();
    resolve();
  }

  #tell(state, detail) {
    Object.assign(this, { state, detail });
    this.dispatchEvent(new Event("state"));
  }
}

// POST, streamed or not. It ends by `signal` where it is cancelled.
export async function post(url, key, body, exchange, signal) {
  const text = JSON.stringify(body);
  exchange.sent(text, body);
  try {
    const answer = await fetch(`${url}/responses`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      credentials: "omit",
      body: text,
      signal,
    });
    exchange.serverTiming = answer.headers.get("server-timing");
    if (!answer.ok) await refused(answer, exchange);
    else if (body.stream) await streamed(answer, exchange);
    else {
      const whole = await answer.text();
      const response = JSON.parse(whole);
      exchange.received(whole, { type: `response.${response.status}`, response });
    }
  } catch (error) {
    const isCancelled = error.name === "AbortError";
    exchange.received("", failure(isCancelled ? "Cancelled." : `No answer: ${error.message}`, isCancelled ? "cancelled" : "connection"));
  }
  exchange.ended();
}

async function refused(answer, exchange) {
  const text = await answer.text();
  let body = failure(`HTTP ${answer.status}`, "http");
  try {
    body = { type: "error", status: answer.status, ...JSON.parse(text) };
  } catch { /* Not ours: a proxy's. */ }
  exchange.received(text, body);
}

async function streamed(answer, exchange) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (left + value).split("\n\n");
    left = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data && data !== "[DONE]") exchange.received(data, JSON.parse(data));
    }
  }
}

export async function listModels(url, key) {
  const answer = await fetch(`${url}/models`, { headers: { authorization: `Bearer ${key}` }, credentials: "omit" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error?.message ?? `HTTP ${answer.status}`);
  return body.data.map((model) => model.id);
}
