/* The service's HTTP interface, as far as the page needs it. */

import { CUT_OFF, NOT_UNDERSTOOD, Problem, TIMED_OUT, UNREACHABLE } from "./problems.js";

const TIMEOUT_MS = 120_000;
const NEUTRAL_NAME = "image"; // a file's own name may say who is on the picture

/** Asks the server that the page came from; holds the key, in memory alone. */
export class Service {
  constructor() {
    this.key = null;
  }

  /** The served models with their facts, the default first. Throws Problem. */
  async models() {
    const { models } = await this.#json("models");
    const facts = await Promise.all(models.map(({ name }) => this.model(name)));
    return facts;
  }

  /** One model's facts. Throws Problem. */
  model(name) {
    return this.#json(`models/${encodeURIComponent(name)}`);
  }

  /** A disposition with its prediction. question: {mode, samples, model}. Throws Problem. */
  triage(file, question, signal) {
    return this.#upload("triage", file, question, signal);
  }

  /** A prediction alone, for a model that the policy does not fit. Throws Problem. */
  predict(file, question, signal) {
    return this.#upload("predict", file, { ...question, detail: "trajectories" }, signal);
  }

  async #upload(path, file, parameters, signal) {
    const body = new FormData();
    body.append("file", file, NEUTRAL_NAME);
    try {
      return await this.#json(`${path}?${new URLSearchParams(parameters)}`, {
        method: "POST",
        body,
        signal,
      });
    } catch (error) {
      if (error.code !== UNREACHABLE.code) throw error;
      // A server that answers before it has read a body may look like one that is gone.
      await this.#json("models");
      throw new Problem(CUT_OFF);
    }
  }

  async #json(path, options = {}) {
    const response = await this.#response(path, options);
    let body;
    try {
      body = await response.json();
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Problem(NOT_UNDERSTOOD);
    }
    if (response.ok) return body;
    const retryAfterS = Number.parseInt(response.headers.get("Retry-After"), 10);
    throw new Problem({
      code: body.code ?? NOT_UNDERSTOOD.code,
      title: body.title ?? NOT_UNDERSTOOD.title,
      detail: body.detail,
      retryAfterS: Number.isNaN(retryAfterS) ? null : retryAfterS,
    });
  }

  async #response(path, { signal, ...options }) {
    const timeout = AbortSignal.timeout(TIMEOUT_MS);
    try {
      return await fetch(new URL(path, document.baseURI), {
        ...options,
        headers: this.key === null ? {} : { "X-API-Key": this.key },
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
        cache: "no-store",
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Problem(timeout.aborted ? TIMED_OUT : UNREACHABLE);
    }
  }
}
