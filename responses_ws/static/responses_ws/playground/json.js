// A JSON value as a tree that unfolds; what is inside is built when it is opened.
import { make } from "./dom.js";

const LONG = 400;

function leaf(value) {
  const text = JSON.stringify(value);
  const kind = value === null ? "null" : typeof value;
  return make("span", { class: `json-${kind}` }, text.length > LONG ? `${text.slice(0, LONG)}… (${text.length} characters)` : text);
}

function label(name) {
  return name === null ? "" : [make("span", { class: "json-name" }, name), ": "];
}

export function tree(value, name = null, depth = 0) {
  if (value === null || typeof value !== "object") return make("div", { class: "json-leaf" }, label(name), leaf(value));
  const entries = Object.entries(value);
  const [open, shut] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return make("div", { class: "json-leaf" }, label(name), open + shut);
  const summary = make("summary", {}, label(name), make("span", { class: "json-size" }, `${open}${entries.length}${shut}`));
  const node = make("details", { class: "json-node" }, summary);
  const fill = () => {
    if (node.open && node.childElementCount === 1) {
      node.append(make("div", { class: "json-inside" }, entries.map(([key, inner]) => tree(inner, key, depth + 1))));
    }
  };
  node.addEventListener("toggle", fill);
  node.open = depth < 2;
  fill();
  return node;
}
