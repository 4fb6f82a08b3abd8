/* How the model is asked: which one, fixed or sampled passes, how many samples. */

import { byId, html } from "./dom.js";
import { counted } from "./words.js";

const SETTLE_MS = 250; // arrow keys pass through options that nobody wants
const DEFAULT_SAMPLES = 4;
const HINTS = {
  stoch: "Sampled passes draw different parts of each adapter: where they lie far apart, do not " +
    "rely on the answer.",
  det: "Fixed passes use each adapter whole, once: quicker, with fewer points to compare.",
};

/** The form over the results. `changed` is called when a person has chosen otherwise. */
export class Controls {
  constructor(changed) {
    this.form = byId("controls");
    this.models = [];
    let settling;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.#fit();
      clearTimeout(settling);
      settling = setTimeout(changed, SETTLE_MS);
    });
    this.#fit();
  }

  /** models: facts of each served one, the default first. */
  offer(models) {
    const chosen = this.#value("model");
    this.models = models;
    byId("model").replaceChildren(...models.map(({ name }) => new Option(name, name)));
    if (models.some(({ name }) => name === chosen)) byId("model").value = chosen;
    byId("model-field").hidden = models.length < 2;
    this.#fit();
  }

  /** The parameters of a question; needs models. */
  question() {
    const [mode, model] = [this.#value("mode"), this.#value("model")];
    return mode === "det" ? { mode, model } : { mode, model, samples: this.#value("samples") };
  }

  #value(name) {
    return new FormData(this.form).get(name);
  }

  #fit() {
    const mode = this.#value("mode");
    byId("mode-hint").textContent = HINTS[mode];
    byId("samples-field").hidden = mode === "det";
    const facts = this.models.find(({ name }) => name === byId("model").value);
    const chosen = byId("samples").value || String(DEFAULT_SAMPLES);
    byId("samples").replaceChildren(...sampleOptions(facts, chosen));
  }
}

function sampleOptions(facts, chosen) {
  const most = facts?.max_samples ?? DEFAULT_SAMPLES;
  const known = new Set((facts?.thresholds ?? []).map(({ mode, samples }) => `${mode} ${samples}`));
  const options = [];
  for (let samples = 1; samples <= most; samples *= 2) {
    const passes = facts ? ` (${counted(samples * facts.adapters, "pass", "passes")})` : "";
    const without = facts && !known.has(`stoch ${samples}`) ? ", no threshold" : "";
    const selected = samples === Math.min(Number(chosen), most);
    options.push(html("option", { value: samples, selected }, `${samples}${passes}${without}`));
  }
  const without = facts && !known.has("stoch auto") ? ", no threshold" : "";
  const attributes = { value: "auto", selected: chosen === "auto" };
  options.push(html("option", attributes, `as many as it takes${without}`));
  return options;
}
