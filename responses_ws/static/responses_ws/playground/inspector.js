// Every event of a turn: when, how large, what; and where its time went.
import { byId, bytes, count, make, milliseconds, money, plural, draw } from "./dom.js";
import { tree } from "./json.js";

const MOST_ROWS = 1500;
const WAYS = { websocket: "WebSocket", sse: "SSE", json: "JSON" };

export class Inspector {
  #turn = null;
  #shown = 0;
  #folded = null;

  constructor() {
    this.rows = byId("events");
    this.filter = byId("filter");
    this.fold = byId("fold");
    this.filter.addEventListener("input", () => this.show(this.#turn));
    this.fold.addEventListener("change", () => this.show(this.#turn));
  }

  // Look at this turn from now on.
  show(turn) {
    this.#turn = turn;
    this.#shown = 0;
    this.#folded = null;
    this.rows.replaceChildren();
    byId("no-events").hidden = Boolean(turn);
    byId("inspected").hidden = !turn;
    if (turn) this.update(turn);
  }

  // More has happened in a turn; of others than the one that is looked at nothing is drawn.
  update(turn) {
    if (turn !== this.#turn) return;
    const { events } = turn.exchange;
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (; this.#shown < events.length; this.#shown += 1) {
      const event = events[this.#shown];
      const text = `${event.direction} ${event.type}`.toLowerCase();
      if (words.every((word) => (word.startsWith("-") ? !text.includes(word.slice(1)) : text.includes(word)))) this.#add(event);
    }
    byId("counted").textContent = `${plural(events.length, "event")} · ${bytes(turn.exchange.sentBytes)} out · ${bytes(turn.exchange.receivedBytes)} in`;
    this.#figures(turn);
  }

  #add(event) {
    if (this.fold.checked && event.type.endsWith(".delta") && this.#folded?.type === event.type) {
      this.#folded.add(event);
      return;
    }
    if (this.rows.childElementCount >= MOST_ROWS) return;
    const size = make("span", { class: "size" }, bytes(event.size));
    const times = make("span", { class: "times" });
    const arrow = make("span", { class: `arrow ${event.direction}`, title: event.direction === "out" ? "sent" : "received" }, event.direction === "out" ? "↑" : "↓");
    const summary = make("summary", {}, arrow, make("span", { class: "ms" }, milliseconds(event.ms)), make("span", { class: "type" }, event.type), times, size);
    const row = make("details", { class: `event ${/error|failed/.test(event.type) ? "bad" : ""}` }, summary);
    const all = [event];
    row.addEventListener("toggle", () => {
      if (row.open && row.childElementCount === 1) row.append(make("div", { class: "body" }, all.slice(0, 100).map(({ body }) => tree(body))));
    });
    this.rows.append(row);
    this.#folded = {
      type: event.type,
      add: (more) => {
        all.push(more);
        times.textContent = `×${all.length}`;
        size.textContent = bytes(all.reduce((sum, one) => sum + one.size, 0));
      },
    };
  }

  #figures(turn) {
    const { exchange } = turn;
    const { usage } = exchange;
    const cached = usage?.input_tokens_details?.cached_tokens ?? 0;
    const reasoning = usage?.output_tokens_details?.reasoning_tokens ?? 0;
    const figures = [
      ["Way", WAYS[exchange.way]],
      ["Accepted", milliseconds(exchange.created)],
      ["First token", milliseconds(exchange.first)],
      ["Done", milliseconds(exchange.total)],
      ["Speed", exchange.rate ? `${count(exchange.rate)} tokens/s` : "–"],
      ["Input", usage ? `${plural(usage.input_tokens, "token")}, ${count(cached)} cached` : "–"],
      ["Output", usage ? `${plural(usage.output_tokens, "token")}${reasoning ? `, ${count(reasoning)} reasoning` : ""}` : "–"],
      ["Sent again", plural(turn.resent, "token")],
      ["Price", turn.price ? money(turn.price) : "–"],
    ];
    if (exchange.serverTiming) figures.push(["Server", exchange.serverTiming.replaceAll(";dur=", " ")]);
    byId("figures").replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    byId("timeline").replaceChildren(timeline(exchange));
  }
}

// sent → created → first token → done, to scale.
function timeline(exchange) {
  const end = exchange.total || performance.now() - exchange.sentAt;
  const at = (value) => (value >= 0 ? Math.min(100, (100 * value) / end) : null);
  const created = at(exchange.created) ?? 0;
  const first = at(exchange.first) ?? created;
  const picture = draw("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img" });
  const title = `Accepted after ${milliseconds(exchange.created)}, first token after ${milliseconds(exchange.first)}, done after ${milliseconds(exchange.total)}`;
  picture.append(draw("title", {}, title));
  for (const [from, to, kind] of [[0, created, "accept"], [created, first, "wait"], [first, 100, "tell"]]) {
    picture.append(draw("rect", { x: from, y: 0, width: Math.max(0, to - from), height: 10, class: kind }));
  }
  return make("div", {}, picture, make("div", { class: "legend" },
    make("span", { class: "accept" }, "accepting"), make("span", { class: "wait" }, "waiting for the model"), make("span", { class: "tell" }, "telling")));
}
