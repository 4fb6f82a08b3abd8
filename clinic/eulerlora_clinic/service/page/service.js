/* A client of the service's HTTP interface. */

import { known, t } from "./language.js";
import { UPLOAD_FAILED, UNREADABLE, Problem, TIMED_OUT, UNREACHABLE } from "./problems.js";

const TIMEOUT_MS = 120_000;
const DETAIL = { detail: "trajectories" }; // the page draws them
const NEUTRAL_NAME = "image"; // the file's real name may identify a patient

/** Sends requests to the server of the page. Keeps the key in memory only. */
export class Service {
  /** refused: called when the server requires a key, or another one. */
  constructor(refused) {
    this.refused = refused;
    this.key = null;
  }

  /** Details of the served models, the default first. Throws Problem. */
  async models() {
    const { models } = await this.#json("models");
    return Promise.all(models.map(({ name }) => this.model(name)));
  }

  /** Details of one model. Throws Problem. */
  model(name) {
    return this.#json(`models/${encodeURIComponent(name)}`);
  }

  /** The model card in Markdown. Throws Problem. */
  async card(name) {
    return (await this.#success(`models/${encodeURIComponent(name)}/card`)).text();
  }

  /** The triage policy and its default options. Throws Problem. */
  policy() {
    return this.#json("triage/policy");
  }

  /** Records a decision; returns all that is recorded about the answer. Throws Problem.
   * @param {{request_id: string, decision: string, reason?: string}} fields */
  decide(fields) {
    return this.#json("decisions", posted(fields));
  }

  /** A disposition with its prediction. options: {mode, samples, model}. Throws Problem. */
  triage(file, options, signal) {
    return this.#upload("triage", file, { ...options, ...DETAIL }, signal);
  }

  /** A prediction, for a model that the policy does not apply to. Throws Problem. */
  predict(file, options, signal) {
    return this.#upload("predict", file, { ...options, ...DETAIL }, signal);
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
      // A server that responds before it has read the body looks unreachable: tell them apart.
      await this.#json("models");
      throw new Problem(UPLOAD_FAILED);
    }
  }

  async #json(path, options = {}) {
    const response = await this.#success(path, options);
    return bodyOf(response, options.signal);
  }

  /** The response, if it is successful; otherwise throws its problem. */
  async #success(path, options = {}) {
    const response = await this.#response(path, options);
    if (response.ok) return response;
    const body = await bodyOf(response, options.signal);
    const retryAfterS = Number.parseInt(response.headers.get("Retry-After"), 10);
    if (body.code === "not_authenticated") this.refused();
    throw new Problem({
      code: body.code ?? UNREADABLE.code,
      status: response.status,
      title: body.title ? t(body.title) : UNREADABLE.title,
      detail: body.detail && known(body.detail),
      retryAfterS: Number.isNaN(retryAfterS) ? null : retryAfterS,
    });
  }

  async #response(path, { signal, headers, ...options }) {
    const timeout = AbortSignal.timeout(TIMEOUT_MS);
    try {
      return await fetch(new URL(path, document.baseURI), {
        ...options,
        headers: { ...headers, ...(this.key === null ? {} : { "X-API-Key": this.key }) },
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

function posted(body) {
  return {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
  };
}

async function bodyOf(response, signal) {
  try {
    return await response.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(UNREADABLE);
  }
}
