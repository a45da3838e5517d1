// A small part of Markdown, as elements: fences, headings, lists, code, bold, italics. No HTML, no pictures; of links only
// the words and, where it is http, the address. What it does not know stays as it was written.
import { make } from "./dom.js";

const INLINE = /(`+)([^`]+?)\1|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])|(?<!!)\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

function inline(text) {
  const parts = [];
  let position = 0;
  for (const match of text.matchAll(INLINE)) {
    parts.push(text.slice(position, match.index));
    const [whole, , code, bold, italic, label, address] = match;
    if (code !== undefined) parts.push(make("code", {}, code));
    else if (bold !== undefined) parts.push(make("strong", {}, bold));
    else if (italic !== undefined) parts.push(make("em", {}, italic));
    else parts.push(`${label} (`, make("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, address), ")");
    position = match.index + whole.length;
  }
  parts.push(text.slice(position));
  return parts;
}

function block(lines) {
  if (lines.every((line) => /^\s*([-*]|\d+[.)])\s+/.test(line))) {
    const tag = /^\s*\d/.test(lines[0]) ? "ol" : "ul";
    return make(tag, {}, lines.map((line) => make("li", {}, inline(line.replace(/^\s*([-*]|\d+[.)])\s+/, "")))));
  }
  const heading = lines.length === 1 && lines[0].match(/^#{1,6}\s+(.*)/);
  if (heading) return make("p", { class: "heading" }, inline(heading[1]));
  return make("p", {}, lines.flatMap((line, index) => [index ? make("br") : "", ...inline(line)]));
}

export function prose(text) {
  const found = [];
  let lines = [];
  let fence = null;
  const close = () => {
    if (lines.length) found.push(fence === null ? block(lines) : make("pre", { tabindex: "0" }, lines.join("\n")));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = line.match(/^\s*(```+)/);
    if (mark && (fence === null || mark[1].length >= fence)) {
      close();
      fence = fence === null ? mark[1].length : null;
    } else if (fence === null && !line.trim()) close();
    else lines.push(line);
  }
  close();
  return found;
}
