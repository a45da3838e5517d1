// The live view: one socket, one picture a second, rows that are changed in place. Whatever others have named (keys,
// projects, clients, models) is only ever set as text.

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15000;
const STALE_MS = 3500;
const NOT_ALLOWED = 4403;

const root = document.getElementById("rws-live");
const part = (name) => document.getElementById(`rws-live-${name}`);
const orders = new Set(root.dataset.orders.trim().split(/\s+/).filter(Boolean));

const COLUMNS = [
  { title: "Project", of: (c) => c.project, small: (c) => `${c.keyName} ${c.key}` },
  { title: "Client", of: (c) => c.agent || "–", small: (c) => c.id },
  { title: "Transport", of: (c) => c.transport, small: (c) => c.process },
  { title: "Age", of: (c) => span(c.seconds), by: (c) => c.seconds },
  { title: "Lanes", of: (c) => String(c.lanes), by: (c) => c.lanes, small: (c) => (c.waiting ? `${c.waiting} waiting` : "") },
  { title: "Held", of: (c) => bytes(c.held_bytes), by: (c) => c.held_bytes, small: (c) => (c.items ? `${c.items} items` : "") },
  { title: "Turns", of: (c) => "", by: (c) => c.tokens },
];
if (orders.size) COLUMNS.push({ title: "Actions" });

let picture = null;
let heardAt = 0;
let pause = FIRST_PAUSE_MS;
let isOver = false;
let sortedBy = 6;
let isDescending = true;
const rows = new Map();

function span(seconds) {
  if (seconds < 60) return `${seconds.toFixed(0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function bytes(count) {
  if (count < 1024) return `${count} B`;
  const step = Math.min(3, Math.floor(Math.log2(count) / 10));
  return `${(count / 1024 ** step).toFixed(1)} ${["B", "KiB", "MiB", "GiB"][step]}`;
}

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Only what is new, so that a selection or a screen reader's place in the table stays.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function state(text, isStale) {
  const node = part("state");
  say(node, text);
  node.classList.toggle("rws-stale", isStale);
}

function connectionsOf(shown) {
  return shown.processes.flatMap((process) =>
    process.connections.map((one) => ({
      ...one,
      process: process.process,
      project: shown.projects[one.project_id] ?? `project ${one.project_id}`,
      keyName: one.api_key_id === null ? "" : (shown.keys[one.api_key_id] ?? `key ${one.api_key_id}`),
      tokens: one.turns.length ? 1 + one.turns.reduce((sum, turn) => sum + turn.tokens, 0) : 0,
    })),
  );
}

function described(turn) {
  const speaks = turn.first_token_seconds !== null;
  const pace = speaks ? turn.tokens / Math.max(0.1, turn.seconds - turn.first_token_seconds) : 0;
  const word = speaks ? `${turn.tokens} tokens, ${pace.toFixed(0)}/s` : turn.response_id ? "waits for its first token" : "is checked";
  const where = [turn.lane === null ? "" : `lane ${turn.lane}`, turn.is_background ? "background" : ""].filter(Boolean);
  return [`${turn.model}: ${word}`, [span(turn.seconds), ...where, turn.response_id].filter(Boolean).join(" · ")];
}

function isWanted(connection, words) {
  if (part("busy").checked && !connection.turns.length) return false;
  const turns = connection.turns.map((turn) => `${turn.model} ${turn.response_id}`).join(" ");
  const all = [connection.project, connection.keyName, connection.key, connection.agent, connection.id, connection.process,
    connection.transport, turns].join(" ").toLowerCase();
  return words.every((word) => all.includes(word));
}

function rowOf(connection) {
  const known = rows.get(connection.id);
  if (known) return known;
  const row = { node: document.createElement("tr"), cells: [], shown: "" };
  COLUMNS.forEach((column, index) => {
    const cell = document.createElement(index ? "td" : "th");
    if (!index) cell.scope = "row";
    row.cells.push(cell);
    row.node.append(cell);
  });
  rows.set(connection.id, row);
  return row;
}

function fill(row, connection) {
  COLUMNS.forEach((column, index) => {
    if (column.title === "Turns" || column.title === "Actions") return;
    const cell = row.cells[index];
    if (!cell.firstChild) cell.append(element("span"), element("span", "", "rws-live-small"));
    say(cell.firstChild, column.of(connection));
    say(cell.lastChild, column.small?.(connection) ?? "");
  });
  const turns = row.cells[6];
  while (turns.children.length > connection.turns.length) turns.lastChild.remove();
  connection.turns.forEach((turn, index) => {
    if (!turns.children[index]) {
      const node = document.createElement("div");
      node.append(element("span"), element("span", "", "rws-live-small"));
      turns.append(node);
    }
    const [what, small] = described(turn);
    say(turns.children[index].firstChild, what);
    say(turns.children[index].lastChild, small);
  });
  if (orders.size) offer(row, connection);
}

// Buttons are made again only when others are due: one that is pressed stays under the finger.
function offer(row, connection) {
  const due = [];
  if (orders.has("close") && connection.transport === "websocket") {
    due.push(["close", connection.id, "Close", `Close the connection of ${connection.keyName || connection.key}?`,
      "Its turns end and are recorded as cancelled. The client is told that it may connect again (1012)."]);
  }
  if (orders.has("cancel")) {
    for (const turn of connection.turns.filter((one) => one.response_id)) {
      due.push(["cancel", turn.response_id, "Cancel turn", `Cancel the turn of ${turn.model} for ${connection.keyName || connection.key}?`,
        "Its client gets the response as it is by then, as cancelled."]);
    }
  }
  if (orders.has("revoke") && connection.api_key_id !== null) {
    due.push(["revoke", String(connection.api_key_id), "Revoke key", `Revoke the key ${connection.keyName} (${connection.key})?`,
      "For good: no request with it is answered any more, and all of its sockets close."]);
  }
  const shown = due.map(([order, id]) => `${order} ${id}`).join();
  if (row.shown === shown) return;
  row.shown = shown;
  row.cells[7].replaceChildren(...due.map(([order, id, word, question, consequence]) => {
    const button = element("button", word);
    button.type = "button";
    button.setAttribute("aria-label", question.replace(/\?$/, ""));
    button.addEventListener("click", () => confirm(order, id, word, question, consequence));
    return button;
  }));
}

function draw() {
  if (!picture) return;
  const all = connectionsOf(picture);
  const words = part("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = all.filter((connection) => isWanted(connection, words));
  const column = COLUMNS[sortedBy];
  const value = column.by ?? column.of;
  const sign = isDescending ? -1 : 1;
  wanted.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    return sign * (one < other ? -1 : one > other ? 1 : 0) || (a.id < b.id ? -1 : 1);
  });
  const body = part("rows");
  wanted.forEach((connection, index) => {
    const row = rowOf(connection);
    fill(row, connection);
    if (body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
  });
  while (body.children.length > wanted.length) body.lastChild.remove();
  const ids = new Set(all.map((connection) => connection.id));
  for (const id of rows.keys()) if (!ids.has(id)) rows.delete(id);
  const { totals } = picture;
  for (const name of ["sockets", "lanes", "generating", "waiting"]) say(part(name), totals[name].toLocaleString());
  say(part("processes"), `in ${totals.processes} ${totals.processes === 1 ? "process" : "processes"}`);
  const untold = Math.max(0, totals.sockets - all.filter((connection) => connection.transport === "websocket").length);
  const rest = untold ? `, ${untold.toLocaleString()} idle ones are not listed` : "";
  say(part("count"), `${wanted.length.toLocaleString()} of ${all.length.toLocaleString()}${rest}`);
  part("empty").hidden = wanted.length > 0;
  say(part("empty"), all.length ? "Nothing fits the filter." : "Nobody is connected.");
}

function head() {
  COLUMNS.forEach((column, index) => {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (column.of) {
      const button = element("button", column.title);
      button.type = "button";
      button.addEventListener("click", () => {
        isDescending = sortedBy === index ? !isDescending : Boolean(column.by);
        sortedBy = index;
        mark();
        draw();
      });
      cell.append(button);
    } else {
      cell.textContent = column.title;
    }
    part("head").append(cell);
  });
  mark();
}

function mark() {
  [...part("head").children].forEach((cell, index) => {
    if (index === sortedBy) cell.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

function confirm(order, id, word, question, consequence) {
  const dialog = part("dialog");
  say(part("question"), question);
  say(part("consequence"), consequence);
  say(part("yes"), word);
  dialog.returnValue = "no";
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "yes") carryOut(order, id, word);
  }, { once: true });
  dialog.showModal();
  part("no").focus();
}

async function carryOut(order, id, word) {
  const token = root.querySelector("input[name=csrfmiddlewaretoken]").value;
  try {
    const answer = await fetch(root.dataset[order], {
      method: "POST",
      headers: { "X-CSRFToken": token },
      body: new URLSearchParams({ id }),
    });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    told(`${word}: done. It shows within a second or two.`);
  } catch (error) {
    told(`${word}: it has not worked, ${error.message}.`);
  }
}

let toldUntil = 0;
function told(text) {
  toldUntil = Date.now() + 4000;
  state(text, false);
}

// Says what is so, and since when it is not: the words change only with the state, or a screen reader would never rest.
function watchClock() {
  if (isOver || Date.now() < toldUntil) return;
  const age = Date.now() - heardAt;
  if (!heardAt) return;
  if (age > STALE_MS) {
    state(`Nothing has been heard since ${new Date(heardAt).toLocaleTimeString()}: what is shown is old. Connecting again…`, true);
    root.classList.add("rws-live-old");
  } else {
    root.classList.remove("rws-live-old");
    const here = { ok: "Live, all hosts.", none: "Live, this host only: there is no channel layer that would reach others.",
      down: "Live, this host only: the channel layer does not answer." };
    state(here[picture.layer], picture.layer === "down");
  }
}

function connect() {
  const url = new URL("socket/", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = url.hash = "";
  const socket = new WebSocket(url);
  socket.addEventListener("message", (event) => {
    picture = JSON.parse(event.data);
    heardAt = Date.now();
    pause = FIRST_PAUSE_MS;
    draw();
    watchClock();
  });
  socket.addEventListener("close", (event) => {
    if (event.code === NOT_ALLOWED) {
      isOver = true;
      state("You are logged out, or may not see this any more. Log in and load the page again.", true);
      return;
    }
    if (!heardAt) state("The server gives no live view. Trying again…", true);
    setTimeout(connect, pause * (0.75 + Math.random() / 2));
    pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
  });
}

head();
part("filter").addEventListener("input", draw);
part("busy").addEventListener("change", draw);
setInterval(watchClock, 500);
connect();
