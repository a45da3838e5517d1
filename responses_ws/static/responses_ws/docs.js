// Shows the two documents: reads them once, builds the page, filters it. Nothing is fetched from elsewhere, and text
// is only ever put in as text.

const PREFIX = "#/components/schemas/";
const METHODS = ["get", "post", "put", "patch", "delete"];
const schemas = new Map();

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child instanceof Node || (child && child !== true)));
  return element;
}

// `code` and ``code`` of a text become code; empty lines part paragraphs.
function prose(text) {
  return (text ?? "").split(/\n\s*\n/).filter(Boolean).map((paragraph) =>
    make("p", {}, paragraph.split(/(`+[^`]+`+)/).map((piece) =>
      piece.startsWith("`") ? make("code", {}, piece.replaceAll("`", "")) : piece)));
}

function code(text) {
  return make("code", {}, text);
}

const nameOf = (reference) => reference.slice(PREFIX.length);
const isNull = (schema) => schema.type === "null";

// What may stand here, null aside.
function choices(schema) {
  return (schema.anyOf ?? [schema]).filter((choice) => !isNull(choice));
}

const isNullable = (schema) => (schema.anyOf ?? []).some(isNull);

function joined(pieces, word) {
  return pieces.flatMap((piece, index) => (index ? [word, piece] : [piece])).flat();
}

// The type in words, with links to named shapes.
function typeOf(schema) {
  return joined(choices(schema).map((choice) => {
    if (choice.$ref) return [make("a", { href: `#object-${nameOf(choice.$ref)}` }, nameOf(choice.$ref))];
    if (choice.anyOf) return typeOf(choice);
    if (choice.const !== undefined) return [code(JSON.stringify(choice.const))];
    if (choice.enum) return joined(choice.enum.map((value) => code(JSON.stringify(value))), " | ");
    if (choice.type === "array" && choice.maxItems === 0) return ["empty array"];
    if (choice.type === "array") return ["array of ", ...(choice.items ? typeOf(choice.items) : ["anything"])];
    if (choice.type === "object" && choice.additionalProperties) return ["map to ", ...typeOf(choice.additionalProperties)];
    return [choice.type ?? "anything"];
  }), " or ");
}

function between(least, most, what) {
  if (least && most !== undefined) return `${least} to ${most} ${what}`;
  return most === undefined ? `at least ${least} ${what}` : `at most ${most} ${what}`;
}

// Limits that the type does not say.
function limits(schema) {
  const found = [];
  for (const choice of choices(schema)) {
    if (choice.minimum !== undefined) found.push(`≥ ${choice.minimum}`);
    if (choice.maximum !== undefined) found.push(`≤ ${choice.maximum}`);
    if (choice.minLength || choice.maxLength) found.push(between(choice.minLength, choice.maxLength, "characters"));
    if (choice.maxProperties) found.push(`at most ${choice.maxProperties} keys`);
    if (choice.pattern) found.push(["matches ", code(choice.pattern)]);
    if (choice.not?.enum) found.push(`not ${choice.not.enum.join(", ")}`);
  }
  return found;
}

// The named shapes within a field, that can be unfolded in place.
function shapesIn(schema) {
  const within = choices(schema).map((choice) => choice.items ?? choice.additionalProperties ?? choice);
  return within.flatMap((choice) => (choice.anyOf ? shapesIn(choice) : choice.$ref ? [nameOf(choice.$ref)] : []));
}

// Marked is what is rarer: what must be there in what clients say, what may be absent in what the server says.
function fields(schema) {
  const required = new Set(schema.required ?? []);
  const isMostlyRequired = required.size > Object.keys(schema.properties ?? {}).length / 2;
  return make("ul", { class: "fields" }, Object.entries(schema.properties ?? {}).map(([name, field]) =>
    make("li", {},
      make("div", { class: "field" },
        code(name),
        make("span", { class: "type" }, typeOf(field)),
        isNullable(field) && make("span", { class: "mark" }, "or null"),
        required.has(name) && !isMostlyRequired && make("span", { class: "mark must" }, "required"),
        !required.has(name) && isMostlyRequired && make("span", { class: "mark" }, "may be absent"),
        field.default !== undefined && make("span", { class: "mark" }, `default ${JSON.stringify(field.default)}`)),
      prose(field.description),
      limits(field).length > 0 && make("p", { class: "limits" }, joined(limits(field), " · ")),
      shapesIn(field).map(unfolding))));
}

// A named shape, built when it is opened first: they contain each other.
function unfolding(name) {
  const details = make("details", {}, make("summary", {}, name));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(make("div", { class: "unfolded" }, body(name)));
  });
  return details;
}

function body(name) {
  const schema = schemas.get(name);
  const text = prose(schema.description);
  return schema.anyOf ? [...text, make("p", { class: "label" }, "one of"), shapesIn(schema).map(unfolding)]
    : [...text, fields(schema)];
}

const SAMPLES = { string: "…", integer: 0, number: 1.0, boolean: true, null: null };

// A value that fits a schema: what must be there, and what says most.
function sample(schema, depth = 0) {
  if (schema.$ref) return sample(schemas.get(nameOf(schema.$ref)), depth + 1);
  if (schema.const !== undefined) return schema.const;
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return depth > 3 && isNullable(schema) ? null : sample(choices(schema)[0], depth);
  if (schema.type === "array") {
    return depth > 4 || schema.maxItems === 0 || !schema.items ? [] : [sample(schema.items, depth + 1)];
  }
  if (schema.type === "object") {
    const names = Object.keys(schema.properties ?? {}).filter((name) => (schema.required ?? []).includes(name));
    return Object.fromEntries(names.map((name) => [name, sample(schema.properties[name], depth)]));
  }
  return SAMPLES[schema.type] ?? {};
}

function example(name) {
  const value = schemas.get(name).examples?.[0] ?? sample(schemas.get(name));
  return make("details", {}, make("summary", {}, "Example"), make("pre", { tabindex: "0" }, JSON.stringify(value, null, 2)));
}

function section(id, heading, ...content) {
  const link = make("a", { class: "anchor", href: `#${id}`, "aria-label": "Link to this" }, "#");
  return make("section", { id }, make("h3", {}, heading, link), content);
}

// A long name that breaks between its words.
function breaking(name) {
  return make("code", {}, name.split(/(?<=[/_.])/).flatMap((piece) => [piece, make("wbr")]));
}

function signature(method, path) {
  const badge = make("span", { class: `method ${method}` }, method.toUpperCase());
  return make("span", { class: "signature" }, badge, breaking(path));
}

function parameters(listed) {
  if (!listed.length) return [];
  const schema = {
    properties: Object.fromEntries(listed.map((one) => [one.name, { ...one.schema, description: one.description }])),
    required: listed.filter((one) => one.required).map((one) => one.name),
  };
  return [make("h4", {}, "Parameters"), fields(schema)];
}

function content(described) {
  return Object.entries(described?.content ?? {}).map(([kind, { schema }]) =>
    make("div", {}, make("p", { class: "label" }, kind), schema.$ref ? unfolding(nameOf(schema.$ref)) : ""));
}

function operation(openapi, path, name, described) {
  const base = openapi.servers[0].url.replace(/\/$/, "");
  const listed = [...(openapi.paths[path].parameters ?? []), ...(described.parameters ?? [])];
  const given = described.requestBody?.content["application/json"].schema;
  const refusals = Object.entries(described.responses).filter(([status]) => status !== "200");
  return section(described.operationId,
    signature(name, base + path),
    prose(described.summary),
    described.security?.length === 0 && make("p", { class: "label" }, "needs no key"),
    parameters(listed),
    given && [make("h4", {}, "Body"), body(nameOf(given.$ref)), example(nameOf(given.$ref))],
    make("h4", {}, "Answer"), content(described.responses["200"]),
    refusals.length > 0 && [make("h4", {}, "Refusals"), make("ul", { class: "refusals" }, refusals.map(([status, one]) =>
      make("li", {}, code(status), " ", openapi.components.responses[one.$ref.split("/").pop()].description)))]);
}

function event(message) {
  const name = nameOf(message.payload.$ref);
  return section(`event-${message.name}`, breaking(message.name), body(name), example(name));
}

function handshake(asyncapi) {
  const { servers, channels } = asyncapi;
  const [server] = Object.values(servers);
  const [channel] = Object.values(channels);
  const path = server.pathname.replace(/\/$/, "") + channel.address;
  return section("handshake",
    signature("ws", path), make("p", {}, code(`${server.protocol}://${server.host}${path}`)),
    prose(asyncapi.info.description), make("h4", {}, "Headers of the handshake"), fields(channel.bindings.ws.headers));
}

function groups(openapi, asyncapi) {
  const messages = (name) => asyncapi.operations[name].messages.map((message) =>
    event(asyncapi.components.messages[message.$ref.split("/").pop()]));
  const operations = (tag) => Object.entries(openapi.paths).flatMap(([path, methods]) =>
    METHODS.filter((name) => methods[name]?.tags.includes(tag)).map((name) => operation(openapi, path, name, methods[name])));
  const payloads = new Set(Object.values(asyncapi.components.messages).map((message) => nameOf(message.payload.$ref)));
  const objects = [...schemas.keys()].filter((name) => !payloads.has(name)).sort();
  return [
    ...openapi.tags.map(({ name }) => [name, operations(name)]),
    ["WebSocket", [handshake(asyncapi)]],
    ["Client events", messages("receiveClientEvent")],
    ["Server events", messages("sendServerEvent")],
    ["Objects", objects.map((name) => section(`object-${name}`, code(name), body(name)))],
  ];
}

function show(openapi, asyncapi) {
  for (const { components } of [asyncapi, openapi]) {
    for (const [name, schema] of Object.entries(components.schemas)) schemas.set(name, schema);
  }
  const main = document.querySelector("main");
  const contents = document.querySelector("#contents");
  const parts = groups(openapi, asyncapi).map(([title, sections]) => {
    const links = sections.map((one) => {
      const link = make("a", { href: `#${one.id}` }, one.querySelector("h3").firstChild.cloneNode(true));
      const text = [one.textContent, one.id].join(" ").toLowerCase();
      return { one, link, text };
    });
    const part = make("div", { class: "part" }, make("h2", {}, title), sections);
    const list = make("div", { class: "list" }, make("h2", {}, title), links.map(({ link }) => link));
    main.append(part);
    contents.append(list);
    return { part, list, links };
  });
  const sources = [document.body.dataset.openapi, document.body.dataset.asyncapi];
  main.prepend(
    make("h1", {}, "Responses API"),
    ...prose(openapi.info.description),
    make("p", { class: "sources" }, "Version ", openapi.info.version, " · ",
      make("a", { href: sources[0] }, "OpenAPI 3.1"), " · ", make("a", { href: sources[1] }, "AsyncAPI 3.0")));
  return parts;
}

function filter(parts, words) {
  let count = 0;
  for (const { part, list, links } of parts) {
    let left = 0;
    for (const { one, link, text } of links) {
      const fits = words.every((word) => text.includes(word));
      one.hidden = link.hidden = !fits;
      left += fits;
    }
    part.hidden = list.hidden = left === 0;
    count += left;
  }
  document.querySelector("#status").textContent = words.length ? `${count} found` : "";
}

// The link of what is being read is marked.
function follow(parts) {
  const links = new Map(parts.flatMap((part) => part.links.map(({ one, link }) => [one, link])));
  const seen = new Set();
  let current;
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) seen[isIntersecting ? "add" : "delete"](target);
    const first = [...links.keys()].find((one) => seen.has(one));
    if (!first || first === current) return;
    links.get(current)?.removeAttribute("aria-current");
    links.get(first).setAttribute("aria-current", "location");
    links.get(first).scrollIntoView({ block: "nearest" });
    current = first;
  }, { rootMargin: "-96px 0px -60% 0px" });
  for (const one of links.keys()) observer.observe(one);
}

function controls(parts) {
  const search = document.querySelector("#search");
  const menu = document.querySelector("#menu");
  const contents = document.querySelector("#contents");
  const look = () => filter(parts, search.value.toLowerCase().split(/\s+/).filter(Boolean));
  const arrive = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target?.closest("[hidden]")) {
      search.value = "";
      look();
    }
    target?.scrollIntoView();
  };
  search.addEventListener("input", look);
  addEventListener("hashchange", arrive);
  addEventListener("keydown", (pressed) => {
    if (pressed.key === "/" && document.activeElement !== search) {
      pressed.preventDefault();
      search.focus();
    }
    if (pressed.key === "Escape" && document.activeElement === search) {
      search.value = "";
      look();
    }
  });
  const open = (is) => {
    menu.setAttribute("aria-expanded", is);
    contents.classList.toggle("open", is);
  };
  menu.addEventListener("click", () => open(!contents.classList.contains("open")));
  contents.addEventListener("click", (clicked) => clicked.target.closest("a") && open(false));
  look();
  arrive();
}

function theme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = localStorage.getItem("responses_ws.theme");
  if (kept) root.dataset.theme = kept;
  document.querySelector("#theme").addEventListener("click", () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem("responses_ws.theme", root.dataset.theme);
  });
}

theme();
try {
  const { openapi, asyncapi } = document.body.dataset;
  const documents = await Promise.all([openapi, asyncapi].map(async (url) => (await fetch(url)).json()));
  const parts = show(...documents);
  controls(parts);
  follow(parts);
} catch (error) {
  document.querySelector("#status").textContent = `The documents could not be read: ${error.message}`;
  throw error;
}
