// The settings of the next turn, as they stand in the form.
import { byId, make } from "./dom.js";
import { TOOLS } from "./examples.js";

const optional = (id) => (byId(id).value.trim() === "" ? null : Number(byId(id).value));

export function readTools() {
  const text = byId("tools").value.trim();
  const tools = text ? JSON.parse(text) : [];
  if (!Array.isArray(tools)) throw new Error("a list of tools is expected");
  return tools;
}

export function read() {
  return {
    model: byId("model").value,
    way: document.querySelector("input[name=way]:checked").value,
    instructions: byId("instructions").value.trim(),
    tools: readTools(),
    effort: byId("effort").value,
    summary: byId("summary").value,
    temperature: optional("temperature"),
    most: optional("most"),
    store: byId("store").checked,
    whole: byId("whole").checked,
    append: byId("append").checked,
  };
}

export function useTools(name) {
  byId("tools").value = TOOLS[name].length ? JSON.stringify(TOOLS[name], null, 2) : "";
  byId("tool-example").value = "";
  check();
}

// Tell at once what is wrong with the tools.
export function check() {
  let fault = "";
  try {
    const tools = readTools();
    byId("tool-count").textContent = tools.length ? ` (${tools.length})` : "";
  } catch (error) {
    fault = `No valid JSON: ${error.message}`;
  }
  byId("tools-fault").textContent = fault;
  byId("tools").setAttribute("aria-invalid", fault ? "true" : "false");
}

export function fill(select, options) {
  select.replaceChildren(...options.map(([value, name]) => make("option", { value }, name)));
}

// Pictures that go with the next message.
export class Pictures {
  urls = [];

  constructor() {
    this.box = byId("pictures");
    byId("picture").addEventListener("change", (event) => this.take(event.target.files));
    byId("say").addEventListener("paste", (event) => this.take(event.clipboardData.files));
    const composer = byId("composer");
    composer.addEventListener("dragover", (event) => event.preventDefault());
    composer.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event.dataTransfer.files);
    });
  }

  take(files) {
    for (const file of [...files].filter((one) => one.type.startsWith("image/"))) {
      const reader = new FileReader();
      reader.addEventListener("load", () => {
        this.urls.push(reader.result);
        this.#draw();
      });
      reader.readAsDataURL(file);
    }
    byId("picture").value = "";
  }

  // Those that are there, which then are gone.
  give() {
    const given = this.urls;
    this.urls = [];
    this.#draw();
    return given;
  }

  #draw() {
    this.box.replaceChildren(...this.urls.map((url, index) => make("span", { class: "picture" },
      make("img", { src: url, alt: `Picture ${index + 1}` }),
      make("button", { type: "button", "aria-label": `Remove picture ${index + 1}`, onclick: () => {
        this.urls.splice(index, 1);
        this.#draw();
      } }, "×"))));
  }
}
