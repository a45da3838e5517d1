// What is said, as it is said: one article a turn.
import { byId, bytes, make, milliseconds, money, plural } from "./dom.js";
import { prose } from "./markdown.js";
import { textOf } from "./turns.js";

const WAYS = { websocket: "WebSocket", sse: "SSE", json: "JSON" };

export class TurnView {
  // `does` says what the buttons do: answer(turn, outputs), choose(turn), copy(turn, form, button).
  constructor(turn, does) {
    Object.assign(this, { turn, does, parts: new Map(), calls: new Map() });
    this.answer = make("div", { class: "answer", "aria-busy": "true" });
    this.waiting = make("p", { class: "waiting" }, "…");
    this.answer.append(this.waiting);
    this.foot = make("p", { class: "foot" });
    this.element = make("article", { class: "turn", tabindex: "-1" }, turn.input.map(said), this.answer, this.foot);
  }

  took(event) {
    const { type } = event;
    if (type === "response.output_item.added") this.#item(event.item);
    else if (type === "response.output_text.delta" || type === "response.refusal.delta") this.#text(event, "text").data += event.delta;
    else if (type === "response.reasoning_text.delta" || type === "response.reasoning_summary_text.delta") this.#text(event, "reasoning").data += event.delta;
    else if (type === "response.function_call_arguments.delta") this.#call(event.item_id).arguments.textContent += event.delta;
    else if (type === "response.output_item.done") this.#finished(event.item);
    else if (type === "response.steer.accepted") this.#note("Steered.");
    else if (type === "response.steer.pending") this.#note("Your words wait for the outputs of these calls.");
    else if (type === "response.steer.failed") this.#note(`Not steered: ${event.error?.message ?? ""}`);
    else if (type === "response.done") this.#ask(event.required);
    else if (type === "error") this.#broken(event.error);
    if (event.response?.output?.length) event.response.output.forEach((item) => this.#finished(item));
    if (event.response?.error) this.#broken(event.response.error);
    this.waiting.hidden = this.answer.childElementCount > 1;
  }

  // What was put into the response while it ran.
  interject(words) {
    this.answer.append(said({ type: "message", role: "user", content: words }));
  }

  // The turn has ended; its figures stand below it.
  ended() {
    const { turn, foot } = this;
    const { exchange } = turn;
    this.answer.setAttribute("aria-busy", "false");
    this.waiting.hidden = true;
    for (const state of this.parts.values()) this.#settle(state);
    const figures = [
      WAYS[exchange.way],
      exchange.firstAt ? `first token ${milliseconds(exchange.first)}` : "",
      exchange.endedAt ? milliseconds(exchange.total) : "",
      exchange.usage ? plural(exchange.usage.output_tokens, "token") : "",
      `sent ${bytes(exchange.sentBytes)}`,
      turn.resent ? `${plural(turn.resent, "token")} sent again` : turn.parent && turn.isWhole ? "nothing sent again" : "",
      turn.price ? money(turn.price) : "",
    ];
    foot.replaceChildren(...figures.filter(Boolean).map((text) => make("span", {}, text)), make("span", { class: "actions" }, this.#buttons()));
    if (turn.status === "incomplete") foot.prepend(make("span", { class: "mark" }, `incomplete: ${turn.response?.incomplete_details?.reason ?? ""}`));
    this.#askOpen();
  }

  // The outputs are on their way; they stand in the next turn, or here, where the response itself goes on.
  answered({ here }) {
    for (const call of this.calls.values()) call.close(here);
    this.form?.remove();
    this.form = null;
  }

  // It is continued once more: its calls wait again.
  again() {
    for (const call of this.calls.values()) call.isAnswered = false;
    this.#askOpen();
  }

  #buttons() {
    const { turn, does } = this;
    const copy = make("select", { "aria-label": "Copy this request as" },
      make("option", { value: "" }, "Copy as…"), [["curl", "curl"], ["python", "Python SDK"], ["websocket", "Python, WebSocket"], ["codex", "Codex config"]].map(([value, name]) => make("option", { value }, name)));
    copy.addEventListener("change", () => {
      does.copy(turn, copy.value);
      copy.value = "";
    });
    const back = turn.isWhole && make("button", { type: "button", class: "quiet", onclick: () => does.choose(turn) }, "Continue from here");
    const inspect = make("button", { type: "button", class: "quiet", onclick: () => does.inspect(turn) }, "Inspect");
    return [back, inspect, copy].filter(Boolean);
  }

  #item(item) {
    if (item.type === "function_call") this.#card(item);
  }

  // The text node that deltas of this part go into.
  #text(event, kind) {
    const key = `${event.item_id} ${kind} ${event.content_index ?? event.summary_index ?? 0}`;
    if (!this.parts.has(key)) {
      const node = document.createTextNode("");
      const element = make("div", { class: `${kind} telling` }, node);
      if (kind === "reasoning") {
        this.answer.append(make("details", { class: "reasoning-fold", open: true }, make("summary", {}, "Reasoning"), element));
      } else this.answer.append(element);
      this.parts.set(key, { node, element, kind, item: event.item_id });
    }
    return this.parts.get(key).node;
  }

  #settle({ node, element, kind }) {
    if (!element.classList.contains("telling")) return;
    element.classList.remove("telling");
    element.replaceChildren(...prose(node.data));
    if (kind === "reasoning") element.parentElement.open = false;
  }

  // A whole item: of streams the end of what was told, of JSON all there is.
  #finished(item) {
    if (item.type === "function_call") {
      this.#call(item.id, item).arguments.textContent = pretty(item.arguments);
      return;
    }
    const known = [...this.parts.values()].filter((state) => state.item === item.id);
    if (known.length) known.forEach((state) => this.#settle(state));
    else if (item.type === "message") {
      this.#text({ item_id: item.id }, "text").data = textOf(item);
      this.#settle(this.parts.get(`${item.id} text 0`));
    } else if (item.type === "reasoning") {
      const words = textOf(item) || textOf({ content: item.summary });
      if (!words) return;
      this.#text({ item_id: item.id }, "reasoning").data = words;
      this.#settle(this.parts.get(`${item.id} reasoning 0`));
    } else if (!this.parts.has(item.id)) {
      this.parts.set(item.id, { node: new Text(), element: make("div"), kind: "other", item: item.id });
      this.answer.append(make("p", { class: "other" }, item.type));
    }
  }

  #call(id, item) {
    if (!this.calls.has(id)) this.#card(item);
    return this.calls.get(id);
  }

  #card(item) {
    const shown = make("pre", { class: "arguments", tabindex: "0", "aria-label": `Arguments of ${item.name}` }, item.arguments ?? "");
    const result = make("textarea", { rows: "2", placeholder: "You are the tool: what does it return?", "aria-label": `Result of ${item.name}`, hidden: true });
    const element = make("section", { class: "call" }, make("h3", {}, make("span", { class: "tag" }, "function call"), item.name), shown, result);
    this.answer.append(element);
    const call = { item, arguments: shown, result, element, isAnswered: false };
    call.close = (here) => {
      call.isAnswered = true;
      if (!result.hidden) {
        result.hidden = true;
        if (here) element.append(make("pre", { class: "result", tabindex: "0", "aria-label": `Result of ${item.name}` }, result.value));
      }
    };
    this.calls.set(item.id, call);
  }

  #askOpen() {
    const open = [...this.calls.values()].filter((call) => !call.isAnswered);
    if (this.turn.isWhole) this.#ask(open.map((call) => ({ call_id: call.item.call_id })));
  }

  // The calls wait for what the human types.
  #ask(required) {
    const wanted = new Set(required.map((stub) => stub.call_id));
    const open = [...this.calls.values()].filter((call) => wanted.has(call.item.call_id) && !call.isAnswered);
    if (!open.length || this.form) return;
    const send = make("button", { type: "submit", class: "primary" }, open.length > 1 ? `Send ${open.length} results` : "Send result");
    this.form = make("form", { class: "results" }, send);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const outputs = open.map((call) => ({ type: "function_call_output", call_id: call.item.call_id, output: call.result.value }));
      this.does.answer(this.turn, outputs);
    });
    for (const { result } of open) {
      result.hidden = false;
      result.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey) {
          event.preventDefault();
          this.form?.requestSubmit();
        }
      });
    }
    this.answer.append(this.form);
    open[0].result.focus();
  }

  #note(text) {
    this.answer.append(make("p", { class: "note" }, text));
  }

  #broken(error) {
    this.answer.append(make("p", { class: "broken", role: "alert" }, error?.code ? make("code", {}, error.code) : "", " ", error?.message ?? "It failed."));
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function said(item) {
  if (item.type === "function_call_output") {
    return make("div", { class: "said output" }, make("span", { class: "tag" }, "result"), make("pre", { tabindex: "0", "aria-label": "Result" }, item.output));
  }
  const pictures = Array.isArray(item.content) ? item.content.filter((part) => part.type === "input_image") : [];
  return make("div", { class: "said" },
    textOf(item) && make("p", {}, textOf(item)),
    pictures.map((part) => make("img", { src: part.image_url, alt: "Picture that you sent" })));
}

// The branches of the conversation: each answer can be gone back to.
export function drawBranches(roots, current, choose) {
  const list = (turns) => make("ul", {}, turns.map((turn) => make("li", {},
    make("button", { type: "button", class: "branch", "aria-current": turn === current ? "true" : undefined, disabled: !turn.isWhole, title: turn.id, onclick: () => choose(turn) },
      make("span", { class: "way" }, WAYS[turn.exchange.way]), turn.words.slice(0, 60)),
    turn.children.length ? list(turn.children) : "")));
  byId("branches").replaceChildren(list(roots));
  byId("branches-box").hidden = !roots.length;
}
