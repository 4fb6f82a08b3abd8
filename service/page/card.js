/* One picture's card: what is known of it, from waiting to an answer or a problem. */

import { figures, resemblance, verdict } from "./answer.js";
import { button, html } from "./dom.js";
import { icon } from "./icons.js";
import { advice, sentence } from "./problems.js";

let made = 0;

/** A card for a file. acts: {retry, remove}, each called with the card. warning: the sentence that
 * stands beside every result. */
export class Card {
  constructor(file, warning, acts) {
    made += 1;
    this.file = file;
    this.name = file.name || `Picture ${made}`;
    this.state = "waiting";
    this.answer = null;
    this.problem = null;
    this.acts = acts;
    this.url = URL.createObjectURL(file);
    this.facts = html("p", { class: "facts" });
    this.verdict = html("div", { class: "verdict-place" });
    this.resemblance = html("div", { class: "evidence" });
    this.figures = html("div", { class: "evidence figures" });
    this.title = html("h3", { id: `card-${made}`, tabindex: -1 }, this.name);
    this.element = html(
      "li",
      {},
      html(
        "article",
        { class: "card", "aria-labelledby": `card-${made}` },
        html("div", { class: "picture" }, this.#thumbnail()),
        html(
          "div",
          { class: "card-head" },
          html("div", { class: "card-name" }, this.title, this.facts),
          button("Remove", () => acts.remove(this), {
            class: "quiet",
            "aria-label": `Remove ${this.name}`,
          }),
        ),
        html("p", { class: "warning card-warning" }, warning),
        this.verdict,
        this.resemblance,
        this.figures,
      ),
    );
    this.waits();
  }

  waits() {
    this.#becomes("waiting");
    if (this.answer === null) this.#says("Waits for its turn");
  }

  isAsked() {
    this.#becomes("asked");
    if (this.answer === null) this.#says("The model looks at it");
  }

  /** The server is busy, and is asked again after so many seconds. */
  isPutOff(seconds) {
    if (this.answer === null) this.#says(`The server is busy; asked again in ${seconds} s`);
  }

  /** descriptions: of each class, by name. */
  shows(answer, descriptions) {
    this.answer = answer;
    this.problem = null;
    this.#becomes(answer.disposition ?? "prediction");
    const { quality } = answer;
    this.facts.textContent = quality === null ? "" : `${quality.width} × ${quality.height} pixels`;
    this.verdict.replaceChildren(verdict(answer));
    this.resemblance.replaceChildren(resemblance(answer, descriptions));
    this.figures.replaceChildren(...figures(answer));
  }

  tells(problem) {
    this.answer = null;
    this.problem = problem;
    this.#becomes("problem");
    this.verdict.replaceChildren(
      html(
        "div",
        { class: "verdict" },
        html("p", { class: "verdict-title" }, icon("problem"), sentence(problem.title)),
        html("p", { class: "pathway" }, sentence(problem.detail)),
        html("p", { class: "note" }, advice(problem)),
        button("Retry", () => this.#retries(), {
          class: "primary",
          "aria-label": `Retry ${this.name}`,
        }),
      ),
    );
    this.#forgetsEvidence();
  }

  /** What this card says now, in a sentence. */
  inWords() {
    if (this.problem !== null) return `${this.name}: ${sentence(this.problem.title)}`;
    if (this.answer.disposition === null) return `${this.name}: no disposition.`;
    const reasons = this.answer.reasons.map(({ words }) => words).join(" ");
    return `${this.name}: ${this.answer.title}. ${reasons}`;
  }

  /** What this card came to, in a word or two. */
  verdictTitle() {
    if (this.problem !== null) return "Not assessed";
    return this.answer.disposition === null ? "No disposition" : this.answer.title;
  }

  /** Lets go of the picture. */
  close() {
    URL.revokeObjectURL(this.url);
    this.element.remove();
  }

  #retries() {
    this.title.focus(); // the button is about to go
    this.acts.retry(this);
  }

  #becomes(state) {
    this.state = state;
    const busy = state === "waiting" || state === "asked";
    this.element.firstChild.setAttribute("aria-busy", String(busy));
    this.element.firstChild.dataset.state = state;
    this.element.firstChild.classList.toggle("busy", busy);
  }

  #says(words) {
    this.problem = null;
    this.#forgetsEvidence();
    this.verdict.replaceChildren(
      html("div", { class: "verdict" }, html("p", { class: "progress" }, words)),
    );
  }

  #forgetsEvidence() {
    this.resemblance.replaceChildren();
    this.figures.replaceChildren();
  }

  #thumbnail() {
    const image = html("img", { alt: `The picture ${this.name}`, src: this.url });
    image.addEventListener("load", () => URL.revokeObjectURL(this.url));
    image.addEventListener("error", () => {
      URL.revokeObjectURL(this.url);
      image.replaceWith(html("span", { class: "no-picture" }, "No preview"));
    });
    return image;
  }
}
