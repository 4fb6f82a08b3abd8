/* The progress of a batch of images, with the time that is left. */

import { byId } from "./dom.js";
import { duration } from "./text.js";

const FIRST_ESTIMATE = 2; // finished images that an estimate needs

export class Progress {
  constructor() {
    this.startedAt = null; // of the batch, in milliseconds; null while nothing is pending
    this.done = 0; // images of the batch that are finished
  }

  /** Shows the state of the items; the batch ends when none is pending. */
  update(items) {
    const pending = items.filter((item) => item.isPending).length;
    if (pending > 0 && this.startedAt === null) {
      this.startedAt = performance.now();
      this.doneBefore = items.length - pending;
    }
    if (pending === 0) this.startedAt = null;
    byId("progress").hidden = pending === 0 || items.length < 2;
    if (pending === 0) return;
    this.done = Math.max(0, items.length - pending - this.doneBefore);
    byId("progress-bar").max = items.length;
    byId("progress-bar").value = items.length - pending;
    byId("progress-text").textContent =
      `${items.length - pending} of ${items.length} images done${this.#left(pending)}`;
  }

  #left(pending) {
    if (this.done < FIRST_ESTIMATE) return "";
    const elapsedS = (performance.now() - this.startedAt) / 1000;
    return `, ${duration((elapsedS / this.done) * pending)} left`;
  }
}
