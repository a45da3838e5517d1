// The dashboard without reloading: filters and links change what is shown, and it keeps itself up to date. Without this
// file all of it works by loading pages.
"use strict";

const SECONDS = 30;
let newest = 0;

function page(root = document) {
  return root.querySelector(".rws");
}

// What the keyboard reaches, in its order.
function places() {
  return [...page().querySelectorAll("a, button, input, select, summary, [tabindex]")];
}

async function show(url, { push = false } = {}) {
  const number = ++newest;
  page().setAttribute("aria-busy", "true");
  let shown;
  try {
    const answer = await fetch(url, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
    shown = page(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // A session that is over, a server that restarts: the browser says it better to who has asked for something.
    if (push) window.location.assign(url);
    else if (number === newest) page().querySelector("[data-live]").textContent = " \u00b7 could not be brought up to date since";
    return;
  } finally {
    page().removeAttribute("aria-busy");
  }
  if (number !== newest || !shown) return;
  const open = [...page().querySelectorAll("details")].map((one) => one.open);
  const focused = document.activeElement;
  const [name, place] = [focused?.getAttribute("name"), places().indexOf(focused)];
  page().replaceChildren(...shown.childNodes);
  if (!push) page().querySelectorAll("details").forEach((one, index) => (one.open = open[index] ?? one.open));
  const again = name ? page().querySelector(`[name="${CSS.escape(name)}"]`) : push ? null : places()[place];
  again?.focus({ preventScroll: true });
  if (push) history.pushState(null, "", url);
}

function addressOf(form) {
  const given = [...new FormData(form)].filter(([, value]) => value !== "");
  return `?${new URLSearchParams(given)}`;
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-soft]")) return;
  event.preventDefault();
  show(addressOf(event.target), { push: true });
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-soft]");
  if (!form) return;
  if (event.target.name === "period") form.querySelectorAll("input[type=date]").forEach((one) => (one.value = ""));
  // A range has two ends: its form is sent when both are there.
  if (event.target.type === "date" && [...form.querySelectorAll("input[type=date]")].some((one) => !one.value)) return;
  show(addressOf(form), { push: true });
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-soft]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  show(link.getAttribute("href"), { push: true });
});

window.addEventListener("popstate", () => show(window.location.href));

setInterval(() => {
  const isBusy = document.hidden || page().contains(document.activeElement?.closest("select, input"));
  if (!isBusy) show(window.location.href);
}, SECONDS * 1000);

document.documentElement.classList.add("rws-scripted");
