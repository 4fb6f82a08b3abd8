/* The card of one image: progress, then a result or a problem. */

import { button, html } from "./dom.js";
import { icon } from "./icons.js";
import { advice, sentence } from "./problems.js";
import { classes, details, verdict } from "./result.js";

let created = 0;

/** A card for a file. actions: {retry, remove}, both called with the card. warning: the sentence
 * shown beside every result. */
export class Card {
  constructor(file, warning, actions) {
    created += 1;
    this.file = file;
    this.name = file.name || `Image ${created}`;
    this.state = "queued";
    this.result = null;
    this.problem = null;
    this.actions = actions;
    this.url = URL.createObjectURL(file);
    this.facts = html("p", { class: "facts" });
    this.verdict = html("div", { class: "verdict-slot" });
    this.classes = html("div", { class: "evidence" });
    this.details = html("div", { class: "evidence details" });
    this.title = html("h3", { id: `card-${created}`, tabindex: -1 }, this.name);
    this.element = html(
      "li",
      {},
      html(
        "article",
        { class: "card", "aria-labelledby": `card-${created}` },
        html("div", { class: "thumbnail" }, this.#thumbnail()),
        html(
          "div",
          { class: "card-head" },
          html("div", { class: "card-name" }, this.title, this.facts),
          button("Remove", () => actions.remove(this), {
            class: "quiet",
            "aria-label": `Remove ${this.name}`,
          }),
        ),
        html("p", { class: "warning card-warning" }, warning),
        this.verdict,
        this.classes,
        this.details,
      ),
    );
    this.showQueued();
  }

  showQueued() {
    this.#setState("queued");
    if (this.result === null) this.#showProgress("Waiting");
  }

  showRunning() {
    this.#setState("running");
    if (this.result === null) this.#showProgress("Analysing");
  }

  /** Shows that the server is busy and when the request is repeated. */
  showRetryIn(seconds) {
    if (this.result === null) this.#showProgress(`The server is busy; retrying in ${seconds} s`);
  }

  /** descriptions: map from class name to description. */
  showResult(result, descriptions) {
    this.result = result;
    this.problem = null;
    this.#setState(result.disposition ?? "prediction");
    const { quality } = result;
    this.facts.textContent = quality === null ? "" : `${quality.width} × ${quality.height} pixels`;
    this.verdict.replaceChildren(verdict(result));
    this.classes.replaceChildren(classes(result, descriptions));
    this.details.replaceChildren(...details(result));
  }

  showProblem(problem) {
    this.result = null;
    this.problem = problem;
    this.#setState("problem");
    this.verdict.replaceChildren(
      html(
        "div",
        { class: "verdict" },
        html("p", { class: "verdict-title" }, icon("problem"), sentence(problem.title)),
        html("p", { class: "pathway" }, sentence(problem.detail)),
        html("p", { class: "note" }, advice(problem)),
        button("Retry", () => this.#retry(), {
          class: "primary",
          "aria-label": `Retry ${this.name}`,
        }),
      ),
    );
    this.#clearEvidence();
  }

  /** The outcome in one sentence, for screen readers. */
  announcement() {
    if (this.problem !== null) return `${this.name}: ${sentence(this.problem.title)}`;
    if (this.result.disposition === null) return `${this.name}: no disposition.`;
    const reasons = this.result.reasons.map(({ words }) => words).join(" ");
    return `${this.name}: ${this.result.title}. ${reasons}`;
  }

  /** The outcome in one or two words. */
  verdictTitle() {
    if (this.problem !== null) return "Not assessed";
    return this.result.disposition === null ? "No disposition" : this.result.title;
  }

  /** Removes the card and releases the image. */
  close() {
    URL.revokeObjectURL(this.url);
    this.element.remove();
  }

  #retry() {
    this.title.focus(); // the button disappears
    this.actions.retry(this);
  }

  #setState(state) {
    this.state = state;
    const busy = state === "queued" || state === "running";
    this.element.firstChild.setAttribute("aria-busy", String(busy));
    this.element.firstChild.dataset.state = state;
    this.element.firstChild.classList.toggle("busy", busy);
  }

  #showProgress(text) {
    this.problem = null;
    this.#clearEvidence();
    this.verdict.replaceChildren(
      html("div", { class: "verdict" }, html("p", { class: "progress" }, text)),
    );
  }

  #clearEvidence() {
    this.classes.replaceChildren();
    this.details.replaceChildren();
  }

  #thumbnail() {
    const image = html("img", { alt: `The image ${this.name}`, src: this.url });
    image.addEventListener("load", () => URL.revokeObjectURL(this.url));
    image.addEventListener("error", () => {
      URL.revokeObjectURL(this.url);
      image.replaceWith(html("span", { class: "no-preview" }, "No preview"));
    });
    return image;
  }
}
