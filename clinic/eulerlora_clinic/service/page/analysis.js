/* Requests the results of images, some at a time; retries while the server is overloaded. */

import { t } from "./language.js";
import { refuseOtherKind, withoutMetadata } from "./metadata.js";
import { EMPTY_FILE, PAGE_FAILED, Problem } from "./problems.js";
import { taskQueue } from "./queue.js";
import { groupOf } from "./words.js";

const CONCURRENT_REQUESTS = 2;
const MAX_RETRIES = 5;
const MAX_RETRY_DELAY_S = 10;
const MULTIPART_BYTES = 1024; // size of the form around the file

export class Analysis {
  /** request: () -> Promise of {options, model, hasPolicy, strip}, the current ones.
   * changed: called with an item whenever its state changes. */
  constructor(service, request, changed) {
    this.service = service;
    this.request = request;
    this.changed = changed;
    this.enqueue = taskQueue(CONCURRENT_REQUESTS);
    this.controllers = new Map(); // item -> AbortController of its pending request
  }

  cancel(item) {
    this.controllers.get(item)?.abort();
    this.controllers.delete(item);
  }

  /** Requests a result with the current options; cancels an earlier request of the item. */
  submit(item) {
    this.cancel(item);
    const controller = new AbortController();
    const { signal } = controller;
    this.controllers.set(item, controller);
    item.wait("queued", t("Waiting"));
    this.changed(item);
    this.enqueue(async () => {
      if (signal.aborted) return;
      item.wait("running", t("Analysing"));
      this.changed(item);
      try {
        const result = await this.#resultWithRetries(item, signal);
        if (signal.aborted) return;
        item.succeed(result);
      } catch (error) {
        if (signal.aborted) return;
        item.fail(asProblem(error));
      }
      this.controllers.delete(item);
      this.changed(item);
    });
  }

  async #resultWithRetries(item, signal) {
    for (let retries = 0; ; retries += 1) {
      try {
        return await this.#result(item.file, signal);
      } catch (error) {
        const delayS = error.code === "overloaded" ? error.retryAfterS : null;
        if (delayS === null || delayS > MAX_RETRY_DELAY_S || retries === MAX_RETRIES) throw error;
        item.wait("running", t("The server is busy; retrying in {n} s", { n: delayS }));
        this.changed(item);
        await new Promise((resolve) => setTimeout(resolve, 1000 * delayS));
        signal.throwIfAborted();
        item.wait("running", t("Analysing"));
        this.changed(item);
      }
    }
  }

  async #result(file, signal) {
    if (file.size === 0) throw new Problem(EMPTY_FILE);
    const { options, model, hasPolicy, strip } = await this.request();
    const sent = strip ? await withoutMetadata(file) : file;
    await refuseOtherKind(sent); // also reads the file: an upload that fails does not say why
    if (sent.size + MULTIPART_BYTES > model.max_body_bytes) throw tooLarge(sent, model);
    if (hasPolicy) {
      const result = await this.service.triage(sent, options, signal);
      return { ...result, prediction: withColumnsOfKeys(result.prediction, model) };
    }
    const prediction = withColumnsOfKeys(await this.service.predict(sent, options, signal), model);
    return {
      disposition: null, group: groupOf(prediction), reasons: [], prediction, quality: null,
      policy: null, target: null,
    };
  }
}

/* The prediction with the columns of `trajectory_probabilities` in the order of the keys of
 * `probabilities`: JSON.parse moves whole numbers to the front. */
function withColumnsOfKeys(prediction, { classes }) {
  const keys = Object.keys(prediction.probabilities);
  if (!keys.some((name) => /^\d+$/.test(name))) return prediction;
  const columns = keys.map((name) => classes.findIndex((one) => one.name === name));
  if (columns.includes(-1)) return prediction; // another checkpoint is served by now
  const rows = prediction.trajectory_probabilities.map((row) => columns.map((column) => row[column]));
  return { ...prediction, trajectory_probabilities: rows };
}

function asProblem(error) {
  if (error instanceof Problem) return error;
  console.error(error);
  return new Problem(PAGE_FAILED);
}

function tooLarge(file, { max_body_bytes: maxBytes }) {
  return new Problem({
    code: "body_too_large",
    status: 413,
    title: t("The image file is too large"),
    detail: t("expected at most {maxBytes} bytes, got {size}", { maxBytes, size: file.size }),
  });
}
