/* What a person decides about a result: accept it, override it with a reason, or undo that. */

import { button, byId, html } from "./dom.js";
import { t } from "./language.js";
import { Problem, sentence } from "./problems.js";

const CHOICES = ["urgent", "refer", "retake", "routine"]; // what a person can decide otherwise
const MAX_REASON = 500; // characters

/** True if the service records decisions on the result of an item. */
function isOffered(item) {
  const isTriaged = item.state === "done" && item.result.disposition !== null;
  return isTriaged && "decisions" in document.body.dataset;
}

function isDecided({ decided }) {
  return decided !== null && decided.decision !== null;
}

/** True for an image that a person can still decide on. */
export function isUndecided(item) {
  return isOffered(item) && !isDecided(item);
}

export class Decision {
  /** @param {import("./item.js").Item} item
   * @param {{decide: Function, edited: Function, grouped: Function}} actions  decide: (item, fields)
   * -> a promise of all that is recorded */
  constructor(item, { decide, edited, grouped }) {
    this.item = item;
    this.decide = decide;
    this.edited = edited;
    this.grouped = grouped;
    this.titles = (status) => status;
    this.text = html("p", { class: "decided", role: "status" });
    this.controls = html("div", { class: "decision-controls" });
    this.fault = html("p", { class: "fault", role: "alert" });
    this.element = html("div", { class: "decision" }, this.text, this.controls, this.fault);
    this.element.hidden = true;
  }

  /** Shows the state of the item. titles: from a status to its title. */
  update(titles) {
    const { item } = this;
    this.titles = titles;
    this.element.hidden = !isOffered(item);
    this.fault.textContent = "";
    if (!this.element.hidden) this.#show();
  }

  #show() {
    const { decided, draft, name, result } = this.item;
    const title = this.titles(result.disposition);
    this.text.textContent = isDecided(this.item) ? this.#words(decided) : "";
    if (draft !== null) {
      this.#showForm(draft);
      return;
    }
    this.controls.replaceChildren(
      ...(isDecided(this.item)
        ? [this.#button(t("Undo"), t("Undo the decision on {name}", { name }), () => this.#send({ decision: "undo" }))]
        : [
          this.#button(t("Accept {title}", { title }), t("Accept {title} for {name}", { title, name }),
            () => this.#send({ decision: result.disposition })),
          this.#button(t("Override"), t("Override {title} for {name}", { title, name }), () => {
            this.#showForm({ decision: "", reason: "" }).focus();
          }),
        ]),
    );
  }

  #words({ decision, disposition, reason }) {
    const [title, suggested] = [decision, disposition].map((status) => this.titles(status));
    if (decision === disposition) return t("Accepted: {title}.", { title });
    const overridden = t("Overridden: {title} instead of {suggested}.", { title, suggested });
    return `${overridden} ${sentence(reason)}`;
  }

  /* Shows the form with a draft; returns its first field. */
  #showForm(draft) {
    const { item } = this;
    const { id, result } = item;
    const others = CHOICES.filter((choice) => choice !== result.disposition);
    const select = html("select", { id: `decision-${id}`, name: "decision", required: true },
      new Option(t("Choose"), ""), others.map((choice) => new Option(this.titles(choice), choice)));
    select.value = draft.decision;
    const reason = html("textarea", {
      id: `reason-${id}`, name: "reason", rows: 2, autocomplete: "off", required: true,
      maxlength: MAX_REASON, "aria-describedby": `reason-hint-${id}`,
    }, draft.reason);
    const form = html("form", { class: "override" },
      html("div", { class: "field" }, html("label", { for: select.id }, t("Decide")), select),
      html("div", { class: "field" }, html("label", { for: reason.id }, t("Reason")), reason),
      html("button", { type: "submit", class: "primary small" }, t("Record")),
      button(t("Cancel"), () => this.#close(), { class: "small" }),
      html("p", { class: "hint", id: `reason-hint-${id}` },
        t("The server's audit log keeps the reason: name no patient.")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      reason.value = reason.value.replace(/\s+/g, " ").trim(); // a pasted text has lines
      if (form.reportValidity()) this.#send({ decision: select.value, reason: reason.value });
    });
    reason.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    form.addEventListener("keydown", ({ key }) => key === "Escape" && this.#close());
    const keep = () => {
      item.draft = { decision: select.value, reason: reason.value };
      this.edited(item);
    };
    form.addEventListener("input", keep);
    keep();
    this.controls.replaceChildren(form);
    return select;
  }

  #close() {
    this.item.draft = null;
    this.edited(this.item);
    this.update(this.titles);
    this.controls.lastElementChild.focus(); // Override
  }

  /* Sends a decision; a second click meanwhile does nothing. */
  async #send(fields) {
    const { item } = this;
    const { result } = item;
    if (this.controls.getAttribute("aria-busy") === "true") return;
    this.controls.setAttribute("aria-busy", "true");
    this.fault.textContent = "";
    try {
      const decided = await this.decide(item, fields);
      if (item.result !== result) return; // the image was sent again
      [item.decided, item.draft] = [decided, null];
      this.edited(item);
      const hadFocus = this.controls.contains(document.activeElement);
      this.#show();
      this.grouped(item);
      const isShown = this.element.checkVisibility(); // a filter may hide its new group
      if (hadFocus) (isShown ? this.controls.firstElementChild : byId("results")).focus();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.fault.textContent = error.text;
    } finally {
      this.controls.removeAttribute("aria-busy");
    }
  }

  #button(label, name, action) {
    return button(label, action, { class: "small", "aria-label": name });
  }
}
