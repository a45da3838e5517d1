// The key of the page: one that the office makes for some minutes, or one that was pasted. It is held in a variable and
// nowhere else: not in the page, not in an address, not in the browser's storage.

const MARGIN_SECONDS = 90;

export class Key {
  #config;
  #secret = null;
  #id = null;
  #until = 0;
  #pasted = null;

  constructor(config, token) {
    this.#config = config;
    this.token = token;
    addEventListener("pagehide", () => this.revoke());
  }

  get isPasted() { return this.#pasted !== null; }
  get seconds() { return Math.max(0, (this.#until - performance.now()) / 1000); }

  paste(secret) {
    this.revoke();
    this.#pasted = secret || null;
  }

  choose(project) {
    this.revoke();
    this.project = project;
  }

  // The secret. Where it has little time left another one is made; `changed` says that it is a new one.
  async get() {
    if (this.#pasted) return { secret: this.#pasted, changed: false };
    if (this.#secret && this.seconds > MARGIN_SECONDS) return { secret: this.#secret, changed: false };
    this.revoke();
    const answer = await fetch(this.#config.key, { method: "POST", body: this.#form({ project: this.project }), credentials: "same-origin" });
    if (!answer.ok) throw new Error(`The office gave no key (HTTP ${answer.status}).`);
    const { id, key, seconds } = await answer.json();
    Object.assign(this, { changedAt: Date.now() });
    this.#id = id;
    this.#secret = key;
    this.#until = performance.now() + seconds * 1000;
    return { secret: key, changed: true };
  }

  // Also when the page goes, which no promise outlives.
  revoke() {
    if (this.#id !== null) navigator.sendBeacon(this.#config.revoke, this.#form({ id: this.#id }));
    this.#id = this.#secret = null;
    this.#until = 0;
  }

  #form(fields) {
    const form = new FormData();
    for (const [name, value] of Object.entries({ csrfmiddlewaretoken: this.token, ...fields })) form.append(name, value);
    return form;
  }
}
