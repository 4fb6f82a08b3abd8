/* The form for an API key, which is kept in memory only. */

import { byId } from "./dom.js";
import { t } from "./language.js";
import { Problem } from "./problems.js";

const REFUSED = t("The server does not accept this key.");

/** `apply` is called with a key and throws Problem if the server refuses it. */
export class KeyForm {
  constructor(apply) {
    this.form = byId("key-form");
    this.field = byId("key");
    this.fault = byId("key-fault");
    this.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await this.#submit(apply, this.field.value.trim());
    });
  }

  /** Shows the form. refused: whether the server has refused a key. */
  show(refused) {
    const wasHidden = this.form.hidden;
    this.form.hidden = false;
    if (refused) this.#setFault(REFUSED);
    if (wasHidden) this.field.focus();
  }

  async #submit(apply, key) {
    this.#setFault("");
    if (!/^[\x21-\x7e]+$/.test(key)) {
      this.#setFault(t("A key consists of letters, digits and symbols, without spaces."));
      return;
    }
    try {
      await apply(key);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      const refused = error.code === "not_authenticated";
      this.#setFault(refused ? REFUSED : error.text);
      return;
    }
    this.field.value = "";
    this.form.hidden = true;
    byId("choose").focus();
  }

  #setFault(fault) {
    this.fault.textContent = fault;
    this.field.setAttribute("aria-invalid", String(fault !== ""));
    if (fault !== "") this.field.focus();
  }
}
