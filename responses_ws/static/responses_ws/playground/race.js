// The same work over all three doors, turn by turn: what a kept connection saves.
import { byId, bytes, count, draw, make, milliseconds, plural, say } from "./dom.js";
import { callsOf, Exchange, post, Socket } from "./client.js";
import { RACE_TOOLS, toolResult } from "./examples.js";
import { bodyFor, message, resent, textOf, Turn } from "./turns.js";

// Of an answer, where the form says nothing: models that do not call would talk on.
const MOST_TOKENS = 64;
const LANES = [
  { way: "websocket", name: "WebSocket", how: "One kept connection. Each turn sends only what is new." },
  { way: "sse", name: "HTTP, streamed", how: "A request a turn, as SSE. Each one sends the whole history." },
  { way: "json", name: "HTTP, JSON", how: "A request a turn, answered at its end. Each one sends the whole history." },
];

class Lane {
  constructor({ way, name, how }) {
    Object.assign(this, { way, name, turns: [], last: null });
    this.bar = make("progress", { max: "1", value: "0", "aria-label": `Turns of ${name}` });
    this.text = make("p", { class: "lane-text" }, " ");
    this.figures = make("dl", { class: "lane-figures" });
    this.element = make("section", { class: `lane ${way}` }, make("h3", {}, name), make("p", { class: "how" }, how), this.bar, this.figures, this.text);
    this.show(0);
  }

  get ms() { return this.turns.reduce((sum, turn) => sum + turn.exchange.total, 0); }
  get sent() { return this.turns.reduce((sum, turn) => sum + turn.exchange.sentBytes, 0); }
  get again() { return this.turns.reduce((sum, turn) => sum + turn.resent, 0); }

  async turn(round, settings, prompt, client, signal) {
    const asked = { ...settings, whole: this.way !== "websocket", store: this.way !== "websocket" ? false : settings.store };
    const calls = callsOf(this.last?.output);
    const outputs = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: toolResult(round, call) }));
    const input = outputs.length ? outputs : [message(this.last ? "Go on." : prompt)];
    const turn = new Turn(this.last, input, asked);
    let words = "";
    const exchange = new Exchange(this.way, (event) => {
      if (event.type === "response.output_text.delta") this.text.textContent = words += event.delta;
      if (event.type === "error") turn.error = event.error;
      if (event.response) turn.response = event.response;
    });
    const body = bodyFor(this.last, input, asked);
    if (this.way === "websocket") await client.socket.run(body, exchange);
    else await post(client.api, client.secret, { ...body, stream: this.way === "sse" }, exchange, signal);
    Object.assign(turn, { exchange, usage: exchange.usage, status: turn.response?.status ?? "failed", resent: resent(this.last, asked) });
    if (turn.error || turn.response?.error) throw new Error(`${this.name}: ${(turn.error ?? turn.response.error).message}`);
    this.last = turn;
    this.turns.push(turn);
    const said = turn.output.map((item) => (item.type === "function_call" ? `${item.name}(${item.arguments})` : textOf(item))).join(" ");
    this.text.textContent = said || words || " ";
  }

  show(rounds) {
    this.bar.max = rounds || 1;
    this.bar.value = this.turns.length;
    const figures = [
      ["Time", this.turns.length ? milliseconds(this.ms) : "–"],
      ["A turn", this.turns.length ? milliseconds(median(this.turns.map((turn) => turn.exchange.total))) : "–"],
      ["Sent", this.turns.length ? bytes(this.sent) : "–"],
      ["Tokens sent again", this.turns.length ? count(this.again) : "–"],
    ];
    this.figures.replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

// A line a lane over the turns.
function chart(title, lanes, valueOf, written) {
  const most = Math.max(1e-9, ...lanes.flatMap((lane) => lane.turns.map(valueOf)));
  const turns = Math.max(2, ...lanes.map((lane) => lane.turns.length));
  const picture = draw("svg", { viewBox: "0 0 320 120", role: "img" });
  picture.append(draw("title", {}, title), draw("line", { x1: 4, y1: 110, x2: 316, y2: 110, class: "axis" }));
  for (const lane of lanes) {
    const points = lane.turns.map((turn, index) => `${4 + (312 * index) / (turns - 1)},${110 - (100 * valueOf(turn)) / most}`);
    picture.append(draw("polyline", { points: points.join(" "), class: `line ${lane.way}` }));
  }
  return make("figure", {}, make("figcaption", {}, title, make("span", {}, `up to ${written(most)}`)), picture);
}

function verdict(lanes) {
  const [socket, sse] = lanes;
  const [kept, http] = [socket, sse].map((lane) => median(lane.turns.map((turn) => turn.exchange.total)));
  return [
    make("strong", {}, kept < http ? `A turn over the kept connection took ${milliseconds(kept)}, over HTTP ${milliseconds(http)}.` : `A turn took ${milliseconds(kept)} over the kept connection and ${milliseconds(http)} over HTTP: here the model takes most of the time.`),
    ` It sent ${bytes(socket.sent)} in the place of ${bytes(sse.sent)}, and ${socket.again ? plural(socket.again, "token") : "no token"} twice, where HTTP sent ${count(sse.again)} tokens again. The longer the conversation, the wider the gap.`,
  ];
}

export class Race {
  #running = null;

  // `client()` gives {api, secret}; `settings()` what the form says.
  constructor(client, settings) {
    Object.assign(this, { client, settings });
    this.reset();
    byId("race-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) this.#running.abort();
      else this.run();
    });
  }

  reset() {
    this.lanes = LANES.map((lane) => new Lane(lane));
    byId("lanes").replaceChildren(...this.lanes.map((lane) => lane.element));
    byId("charts").replaceChildren();
    byId("verdict").replaceChildren("Press Start: an agent's loop runs over all three, turn by turn. The page plays the tool.");
  }

  async run() {
    const rounds = Math.min(40, Math.max(1, Number(byId("race-turns").value) || 10));
    const button = byId("race-start");
    this.reset();
    this.#running = new AbortController();
    button.textContent = "Stop";
    try {
      const { signal } = this.#running;
      const client = await this.client();
      client.socket = new Socket(client.api);
      await client.socket.open(client.secret);
      signal.addEventListener("abort", () => client.socket.close());
      const settings = { ...this.settings(), tools: RACE_TOOLS, append: false, store: true };
      settings.most ??= MOST_TOKENS;
      const prompt = settings.model === "scripted" ? `!rounds ${rounds} ${byId("race-prompt").value}` : byId("race-prompt").value;
      for (let round = 1; round <= rounds && !signal.aborted; round += 1) {
        for (const lane of this.lanes) {
          if (signal.aborted) break;
          await lane.turn(round, settings, prompt, client, signal);
          lane.show(rounds);
        }
        this.#draw();
      }
      client.socket.close();
      if (!signal.aborted) {
        byId("verdict").replaceChildren(...verdict(this.lanes));
        say("Done. " + byId("verdict").textContent);
      } else byId("verdict").replaceChildren("Stopped.");
    } catch (error) {
      byId("verdict").replaceChildren(this.#running.signal.aborted ? "Stopped." : make("span", { class: "broken" }, error.message));
    }
    this.#running = null;
    button.textContent = "Start";
  }

  #draw() {
    byId("charts").replaceChildren(
      chart("Sent, by turn", this.lanes, (turn) => turn.exchange.sentBytes, bytes),
      chart("Time, by turn", this.lanes, (turn) => turn.exchange.total, milliseconds));
  }
}
