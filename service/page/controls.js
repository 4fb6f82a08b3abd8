/* The options of a request: model, fixed or sampled passes, number of samples. */

import { byId, html } from "./dom.js";
import { count } from "./text.js";

const DEBOUNCE_MS = 250; // arrow keys pass through intermediate options
const DEFAULT_SAMPLES = 4;
const HINTS = {
  stoch: "Sampled passes use random parts of every adapter. Do not rely on a result whose passes " +
    "differ widely.",
  det: "Fixed passes use every adapter once, as a whole: faster, with fewer points to compare.",
};

/** The form above the results. `changed` is called after a change of the options. */
export class Controls {
  constructor(changed) {
    this.form = byId("controls");
    this.models = [];
    let timer;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("change", () => {
      this.#update();
      clearTimeout(timer);
      timer = setTimeout(changed, DEBOUNCE_MS);
    });
    this.#update();
  }

  /** models: details of the served models, the default first. */
  setModels(models) {
    const selected = this.#value("model");
    this.models = models;
    byId("model").replaceChildren(...models.map(({ name }) => new Option(name, name)));
    if (models.some(({ name }) => name === selected)) byId("model").value = selected;
    byId("model-field").hidden = models.length < 2;
    this.#update();
  }

  /** The query parameters of a request; requires models. */
  options() {
    const [mode, model] = [this.#value("mode"), this.#value("model")];
    return mode === "det" ? { mode, model } : { mode, model, samples: this.#value("samples") };
  }

  #value(name) {
    return new FormData(this.form).get(name);
  }

  #update() {
    const mode = this.#value("mode");
    byId("mode-hint").textContent = HINTS[mode];
    byId("samples-field").hidden = mode === "det";
    const model = this.models.find(({ name }) => name === byId("model").value);
    const selectedSamples = byId("samples").value || String(DEFAULT_SAMPLES);
    byId("samples").replaceChildren(...sampleOptions(model, selectedSamples));
  }
}

function sampleOptions(model, selectedSamples) {
  const maxSamples = model?.max_samples ?? DEFAULT_SAMPLES;
  const thresholds = new Set(
    (model?.thresholds ?? []).map(({ mode, samples }) => `${mode} ${samples}`),
  );
  const options = [];
  for (let samples = 1; samples <= maxSamples; samples *= 2) {
    const passes = model ? ` (${count(samples * model.adapters, "pass", "passes")})` : "";
    const without = model && !thresholds.has(`stoch ${samples}`) ? ", no threshold" : "";
    const selected = samples === Math.min(Number(selectedSamples), maxSamples);
    options.push(html("option", { value: samples, selected }, `${samples}${passes}${without}`));
  }
  const without = model && !thresholds.has("stoch auto") ? ", no threshold" : "";
  const attributes = { value: "auto", selected: selectedSamples === "auto" };
  options.push(html("option", attributes, `automatic${without}`));
  return options;
}
