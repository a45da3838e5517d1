// The page: what is pressed, and who is told.
import { Exchange, callsOf, listModels, post, Socket } from "./client.js";
import { drawBranches, TurnView } from "./chat.js";
import { FORMS, lines } from "./copying.js";
import { byId, download, make, milliseconds, say } from "./dom.js";
import { PROMPTS, SCRIPTED, TOOLS } from "./examples.js";
import * as form from "./form.js";
import { Inspector } from "./inspector.js";
import { Key } from "./key.js";
import { Race } from "./race.js";
import { bodyFor, message, resent, Turn } from "./turns.js";

const config = JSON.parse(document.body.dataset.config);
const key = new Key(config, document.querySelector("[name=csrfmiddlewaretoken]").value);
const socket = new Socket(config.api);
const inspector = new Inspector();
const pictures = new form.Pictures();
const views = new Map();
const roots = [];
let current = null;
let running = null;
let isAppending = false;

async function connected(settings) {
  const { secret, changed } = await key.get();
  if (socket.isOpen && !changed && isAppending === settings.append) return;
  isAppending = settings.append;
  await socket.open(secret, { append: settings.append });
}

async function run(input) {
  let settings;
  try {
    settings = form.read();
    // Later than the click: a key may have to be made first.
    if (settings.way === "websocket") await connected(settings);
  } catch (error) {
    trouble(error.message);
    return;
  }
  trouble("");
  const turn = new Turn(current, input, settings);
  turn.resent = resent(current, settings);
  turn.exchange = new Exchange(settings.way, (event) => took(turn, event));
  if (!turn.parent) roots.push(turn);
  turn.body = bodyFor(turn.parent, input, settings);
  views.set(turn, new TurnView(turn, does));
  current = turn;
  running = new AbortController();
  drawPath();
  inspector.show(turn);
  drawButtons();
  if (settings.way === "websocket") await socket.run(turn.body, turn.exchange);
  else {
    const { secret } = await key.get();
    await post(config.api, secret, { ...turn.body, stream: settings.way === "sse" }, turn.exchange, running.signal);
  }
  ended(turn);
}

function took(turn, event) {
  const { response } = event;
  if (response?.id) {
    turn.response = response;
    turn.status = response.status ?? turn.status;
  }
  if (event.type === "error" && event.error?.code !== "missing_required_output") turn.status = "failed";
  if (event.type === "response.done") turn.isWaiting = true;
  views.get(turn).took(event);
  stay();
  if (!turn.isDrawing) {
    turn.isDrawing = true;
    requestAnimationFrame(() => {
      turn.isDrawing = false;
      inspector.update(turn);
    });
  }
}

function ended(turn) {
  running = null;
  turn.usage = turn.exchange.usage;
  views.get(turn).ended();
  // What failed leads nowhere: the next message continues what stood before it.
  if (!turn.isWhole) current = turn.parent;
  inspector.update(turn);
  drawButtons();
  drawTree();
  stay();
  const calls = callsOf(turn.output).length;
  say(turn.isWhole ? `${calls ? "The model calls a function" : "Answered"} after ${milliseconds(turn.exchange.total)}.` : "It failed.");
  if (turn.id) price(turn);
}

// The record is there when the answer ends, or a moment later.
async function price(turn, tries = 4) {
  const answer = await fetch(`${config.price}?response=${encodeURIComponent(turn.id)}`, { credentials: "same-origin" });
  if (!answer.ok) return;
  turn.price = await answer.json();
  if (!turn.price) {
    if (tries) setTimeout(() => price(turn, tries - 1), 250);
    return;
  }
  views.get(turn).ended();
  inspector.update(turn);
}

const does = {
  answer(turn, outputs) {
    const view = views.get(turn);
    const isHere = turn.isWaiting && Boolean(running);
    view.answered({ here: isHere });
    if (isHere) {
      turn.isWaiting = false;
      socket.say({ type: "response.append", response_id: turn.id, input: outputs });
      return;
    }
    current = turn;
    run(outputs);
  },
  choose(turn) {
    current = turn;
    drawPath();
    inspector.show(turn);
    drawTree();
    byId("say").focus();
    views.get(turn).again();
    say("The next message continues that answer.");
  },
  inspect(turn) {
    inspector.show(turn);
    look("inspect");
  },
  async copy(turn, kind) {
    if (!FORMS[kind]) return;
    await navigator.clipboard.writeText(FORMS[kind](config.api, turn.body));
    say("Copied, without the key.");
    toast("Copied. Set RESPONSES_WS_KEY to a key of your own.");
  },
};

function toast(text) {
  const shown = make("p", { class: "toast" }, text);
  document.body.append(shown);
  setTimeout(() => shown.remove(), 3000);
}

function trouble(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}

// What was tried in the place of a turn, and came to nothing.
function failedBefore(turn) {
  const tried = turn.parent?.children ?? roots;
  return tried.slice(0, tried.indexOf(turn)).filter((one) => !one.isWhole);
}

// The path to the current answer, and no other branch.
function drawPath() {
  const path = current?.path ?? [];
  const shown = path.flatMap((turn) => [...failedBefore(turn), turn]);
  byId("turns").replaceChildren(...shown.map((turn) => views.get(turn).element));
  byId("welcome").hidden = path.length > 0;
  drawTree();
  byId("turns").lastElementChild?.scrollIntoView({ block: "end" });
}

function drawTree() {
  drawBranches(roots, current, does.choose);
}

// Follow what is told, unless the reader has gone back.
function stay() {
  const box = byId("scroll");
  if (box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
}

function drawButtons() {
  const isSteerable = running && current?.exchange.way === "websocket";
  byId("send").textContent = isSteerable ? "Steer" : "Send";
  byId("send").disabled = Boolean(running) && !isSteerable;
  byId("stop").hidden = !running;
  byId("say").placeholder = isSteerable ? "Put a word in while it runs…" : "Say something…";
}

function stop() {
  if (!running) return;
  if (current.exchange.way === "websocket") socket.close("closed to cancel");
  else running.abort();
}

function submit() {
  const words = byId("say").value.trim();
  if (running) {
    if (!words || current.exchange.way !== "websocket" || !current.id) return;
    socket.say({ type: "response.steer", previous_response_id: current.id, input: words });
    views.get(current).interject(words);
  } else {
    const images = pictures.give();
    if (!words && !images.length) return;
    run([message(words, images)]);
  }
  byId("say").value = "";
}

function drawConnection() {
  const pill = byId("connection");
  pill.className = `pill ${socket.state}`;
  pill.textContent = socket.detail;
  byId("reconnect").hidden = socket.state !== "closed" || !config.websocket;
}

async function reconnect() {
  try {
    await connected(form.read());
    trouble("");
  } catch (error) {
    trouble(error.message);
  }
}

// Which of the columns is seen where there is room for one.
function look(name) {
  document.body.dataset.column = name;
  for (const tab of document.querySelectorAll("[data-show]")) tab.setAttribute("aria-pressed", tab.dataset.show === name);
}

function view(name) {
  document.body.dataset.view = name;
  byId("chat-view").hidden = name !== "chat";
  byId("race-view").hidden = name !== "race";
  document.querySelector("[data-show=chat]").textContent = name === "race" ? "Side by side" : "Chat";
  look("chat");
  for (const tab of document.querySelectorAll("[data-view-of]")) tab.setAttribute("aria-pressed", tab.dataset.viewOf === name);
}

async function start() {
  form.fill(byId("project"), config.projects.map(({ id, name }) => [id, name]));
  if (!config.projects.length) {
    trouble("There is no project yet: make one in the office, for keys belong to projects.");
    return;
  }
  key.choose(byId("project").value);
  try {
    await models();
    if (config.websocket) await connected(form.read());
  } catch (error) {
    trouble(error.message);
  }
  drawConnection();
}

async function models() {
  const { secret } = await key.get();
  const names = await listModels(config.api, secret);
  form.fill(byId("model"), names.map((name) => [name, name]));
  suggest();
}

function suggest() {
  const names = [...byId("model").options].map((option) => option.value);
  byId("race-hint").hidden = byId("model").value === "scripted" || !names.includes("scripted");
  const listed = [...PROMPTS, ...(byId("model").value === "scripted" ? SCRIPTED : [])];
  byId("suggestions").replaceChildren(...listed.map(({ words, tools }) => make("button", { type: "button", class: "suggestion", onclick: () => {
    form.useTools(tools);
    byId("say").value = words;
    submit();
  } }, words)));
}

function usePasted(secret) {
  key.paste(secret);
  byId("pasted").value = "";
  byId("own-key").hidden = !key.isPasted;
  byId("key-kind").textContent = key.isPasted ? "Your key is used." : "A key for minutes is used; it ends with this page.";
}

function another(action) {
  return async () => {
    socket.close("another key");
    action();
    try {
      await models();
      await connected(form.read());
      trouble("");
    } catch (error) {
      trouble(error.message);
    }
  };
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
byId("say").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
byId("stop").addEventListener("click", stop);
byId("reconnect").addEventListener("click", reconnect);
byId("model").addEventListener("change", suggest);
byId("project").addEventListener("change", another(() => key.choose(byId("project").value)));
byId("pasted").addEventListener("change", another(() => usePasted(byId("pasted").value.trim())));
byId("own-key").addEventListener("click", another(() => usePasted("")));
byId("tools").addEventListener("input", form.check);
byId("tool-example").addEventListener("change", (event) => event.target.value && form.useTools(event.target.value));
byId("download").addEventListener("click", () => download("playground.jsonl", "application/jsonl", lines(views.size ? [...views.keys()] : [])));
byId("new").addEventListener("click", () => {
  stop();
  current = null;
  drawPath();
  inspector.show(null);
  byId("say").focus();
});
byId("theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
});
for (const tab of document.querySelectorAll("[data-show]")) tab.addEventListener("click", () => look(tab.dataset.show));
for (const tab of document.querySelectorAll("[data-view-of]")) tab.addEventListener("click", () => view(tab.dataset.viewOf));
socket.addEventListener("state", drawConnection);
form.fill(byId("tool-example"), [["", "Example…"], ...Object.keys(TOOLS).map((name) => [name, name])]);
new Race(async () => ({ api: config.api, secret: (await key.get()).secret }), form.read);
look("chat");
view("chat");
form.check();
drawButtons();
drawConnection();
start();
