/* The key that a server may ask for: typed in, tried, and kept in memory alone. */

import { byId } from "./dom.js";
import { Problem, sentence } from "./problems.js";

const REFUSED = "The server does not take this key.";

/** The form for a key. `use` is called with one, and throws Problem where it is refused. */
export class KeyForm {
  constructor(use) {
    this.form = byId("key-form");
    this.field = byId("key");
    this.fault = byId("key-fault");
    this.form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await this.#try(use, this.field.value.trim());
    });
  }

  /** Shows the form. refused: whether a key was shown and not taken. */
  asks(refused) {
    const wasHidden = this.form.hidden;
    this.form.hidden = false;
    if (refused) this.#tells(REFUSED);
    if (wasHidden) this.field.focus();
  }

  async #try(use, key) {
    this.#tells("");
    if (!/^[\x21-\x7e]+$/.test(key)) {
      this.#tells("A key has letters, digits and signs only, without spaces.");
      return;
    }
    try {
      await use(key);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      const refused = error.code === "not_authenticated";
      this.#tells(refused ? REFUSED : `${error.title}: ${sentence(error.detail)}`);
      return;
    }
    this.field.value = "";
    this.form.hidden = true;
    byId("choose").focus();
  }

  #tells(fault) {
    this.fault.textContent = fault;
    this.field.setAttribute("aria-invalid", String(fault !== ""));
    if (fault !== "") this.field.focus();
  }
}
