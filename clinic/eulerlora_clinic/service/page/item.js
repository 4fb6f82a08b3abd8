/* One image on the page: its file, and the state of its analysis. */

import { LANGUAGE, t } from "./language.js";
import { preview } from "./preview.js";
import { FILE_GONE, Problem, UNREADABLE_FILE } from "./problems.js";
import { shown } from "./shown.js";

let created = 0;

/** Groups of a model that the policy does not apply to. */
export const UNFAMILIAR = "unfamiliar";
export const UNCLEAR = "unclear";
export const AGREED = "agreed";

/** Returns the first item with the bytes of a file, or null.
 * @param {Blob} file
 * @param {Item[]} items */
export async function itemWith(file, items) {
  for (const item of items.filter((one) => one.file?.size === file.size)) {
    const [one, other] = await Promise.all([file, item.file].map(bytesOf));
    if (one.every((byte, index) => byte === other[index])) return item;
  }
  return null;
}

/** The content of a file. Throws Problem for a folder, and for a file that has changed. */
export async function bytesOf(file) {
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Problem(UNREADABLE_FILE);
  }
}

export class Item {
  /** @param {File | null} file
   * @param {string} lesion */
  constructor(file, lesion = "", name = file.name) {
    created += 1;
    this.id = created;
    this.file = file; // null after a reload of the page
    this.name = name || t("Image {n}", { n: created });
    /** @type {"queued" | "running" | "done" | "problem"} */
    this.state = "queued";
    this.progress = t("Waiting");
    this.result = null; // of an earlier request while the state is queued or running
    this.problem = null;
    this.decided = null; // what the service has recorded about the result
    this.draft = null; // {decision, reason} of a decision that is not sent yet
    this.preview = file && preview(file);
    this.identifier = ""; // these three stay in the browser
    this.note = "";
    this.lesion = lesion; // items with the same text show one lesion
    /** @type {{name: string} | null} an earlier item with the same bytes */
    this.sameAs = null;
  }

  /** An item of an earlier load of the page, without its file: an image that had no result, or whose
   * request could be repeated, has to be added again. */
  static restored({ id, name, preview: small, problem, language, ...fields }) {
    const item = new Item(null, "", name);
    created = item.id = Math.max(created, id);
    Object.assign(item, fields, { preview: Promise.resolve(small) });
    const known = problem && language === LANGUAGE ? new Problem(problem) : null;
    if (item.result !== null) item.state = "done";
    else item.fail(known === null || known.isTemporary ? new Problem(FILE_GONE) : known);
    return item;
  }

  /** What is stored of the item, as values of JSON. */
  get fields() {
    const { name, result, problem, decided, draft, identifier, note, lesion, sameAs } = this;
    return {
      name, result, problem: problem && { ...problem }, decided, draft, identifier, note, lesion,
      sameAs: sameAs && { name: sameAs.name }, language: LANGUAGE,
    };
  }

  get isPending() {
    return this.state === "queued" || this.state === "running";
  }

  /** The disposition; the group of a prediction without one; "problem", or "pending". */
  get status() {
    if (this.problem !== null) return "problem";
    if (this.result === null) return "pending";
    return this.result.disposition ?? this.result.group;
  }

  /** Its place in the list: what a person decided on the result; the status before that. */
  get group() {
    return (this.result && this.decided?.decision) ?? this.status;
  }

  /** The probability of the target classes; -1 without one, and for an unfamiliar image. */
  get target() {
    return (this.result && shown(this.result).target)?.probability ?? -1;
  }

  /** Unlike all that the model knows. */
  get isFar() {
    return this.result !== null && this.result.reasons.some(({ code }) => code === "far");
  }

  /** @param {"queued" | "running"} state */
  wait(state, progress) {
    [this.state, this.progress, this.problem] = [state, progress, null];
  }

  succeed(result) {
    [this.state, this.result, this.problem] = ["done", result, null];
    [this.decided, this.draft] = [null, null];
  }

  fail(problem) {
    [this.state, this.result, this.problem] = ["problem", null, problem];
  }
}
