// Building the page. Text is only ever put in as text.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

// What a reader of the screen hears.
export function say(text) {
  byId("status").textContent = text;
}

export function milliseconds(value) {
  if (value === undefined || value === null || Number.isNaN(value)) return "–";
  if (value < 10) return `${value.toFixed(1)} ms`;
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`;
}

export function bytes(value) {
  if (value < 1000) return `${value} B`;
  return value < 1e6 ? `${(value / 1000).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`;
}

export const count = (value) => Math.round(value).toLocaleString("en");

export const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

// Nano units of a currency, in as many places as it takes to see something.
export function money({ amount_nano, currency }) {
  const amount = amount_nano / 1e9;
  const digits = amount === 0 ? 2 : Math.min(9, Math.max(2, 2 - Math.floor(Math.log10(Math.abs(amount)))));
  return amount.toLocaleString("en", { style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: digits });
}

export function download(name, type, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
