/* The options of a request: the model and its passes. */

import { byId, html } from "./dom.js";
import {
  consequence, isLocked, labelOf, parameters, policyApplies, settingsOf,
} from "./settings.js";

const DEBOUNCE_MS = 250; // arrow keys pass through intermediate options

/** The form of the options. `changed` is called after a change; `selected` with a chosen model. */
export class Controls {
  constructor(changed, selected) {
    this.models = [];
    this.policy = null;
    this.settings = [];
    this.selected = selected;
    let timer;
    const change = () => {
      clearTimeout(timer);
      timer = setTimeout(changed, DEBOUNCE_MS);
    };
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
    byId("passes").addEventListener("change", change);
    byId("unlock").addEventListener("change", () => {
      if (this.#showSettings()) change();
    });
    byId("model").addEventListener("change", () => {
      this.#selectModel();
      change();
    });
  }

  /** models: details of the served models, the default first. policy: of GET /triage/policy. */
  setModels(models, policy) {
    const name = byId("model").value;
    this.models = models;
    this.policy = policy;
    byId("model").replaceChildren(...models.map((model) => new Option(model.name, model.name)));
    if (models.some((model) => model.name === name)) byId("model").value = name;
    byId("model-field").hidden = models.length < 2;
    this.#selectModel();
  }

  /** The details of the selected model; undefined before the models are loaded. */
  get model() {
    return this.models.find(({ name }) => name === byId("model").value);
  }

  /** True if the policy decides on images of the selected model. */
  get hasPolicy() {
    return policyApplies(this.model, this.policy);
  }

  /** The query parameters of a request; requires models. */
  options() {
    return parameters(this.settings[Number(byId("passes").value)], this.model.name);
  }

  #selectModel() {
    const policy = this.hasPolicy ? this.policy : null;
    this.settings = settingsOf(this.model, policy);
    byId("unlock").checked = false;
    byId("unlock-field").hidden = !this.settings.some((setting) => this.#isLocked(setting));
    byId("unlock-hint").textContent = consequence(this.settings[0], this.policy);
    byId("passes").value = "0";
    this.#showSettings();
    this.selected(this.model, this.hasPolicy);
  }

  /* Returns true if a locked setting was selected: the recommended one replaces it. */
  #showSettings() {
    const chosen = Number(byId("passes").value || 0);
    const unlocked = byId("unlock").checked;
    const kept = unlocked || !this.#isLocked(this.settings[chosen]);
    byId("passes").replaceChildren(
      ...this.settings.map((setting, index) =>
        html(
          "option",
          {
            value: index,
            selected: index === (kept ? chosen : 0),
            disabled: !unlocked && this.#isLocked(setting),
          },
          labelOf(setting, this.model, this.settings[0]),
        ),
      ),
    );
    return !kept;
  }

  #isLocked(setting) {
    return isLocked(setting, this.settings[0]);
  }
}
