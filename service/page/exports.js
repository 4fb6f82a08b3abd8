/* What leaves the page: report, CSV, JSON, print, and the request for use via API. */

import { byId, html } from "./dom.js";
import { reportThumbnail } from "./preview.js";
import { Problem, sentence } from "./problems.js";
import { count } from "./text.js";

const COPIED = "Copied";
const MAX_NAME = 1000; // characters, accepted by the service

/** The finished items as the service's report takes them. */
export async function reportImages(items) {
  return Promise.all(
    items.map(async ({ name, problem, result, preview }) => ({
      file: name.slice(0, MAX_NAME),
      ...(problem === null ? { result } : { problem: documentOf(problem) }),
      thumbnail: await reportThumbnail(await preview),
    })),
  );
}

/** The finished items as JSON: the answers of the service, each with its file name. */
export function asJson(items) {
  const entries = items.map(({ name, problem, result }) =>
    problem === null
      ? { file: name, problem: null, ...(result.disposition === null ? result.prediction : result) }
      : { file: name, problem: documentOf(problem) },
  );
  return JSON.stringify(entries, null, 2);
}

/** The request of one image with curl. options: the query parameters. */
export function curlLine({ path, options, hasKey }) {
  const url = new URL(`${path}?${new URLSearchParams(options)}`, document.baseURI);
  const key = hasKey ? ' -H "X-API-Key: $KEY"' : "";
  return `curl${key} -F file=@image.jpg '${url}'`;
}

/** Describes the results at the end of a printed page. */
export function describePrint(items) {
  const results = items.map(({ result }) => result).filter((result) => result !== null);
  const origins = results.map(({ prediction, policy }) =>
    [prediction.model, prediction.revision, policy && `policy version ${policy.version}`]
      .filter(Boolean).join(", "),
  );
  const origin = [...new Set(origins)].join("; ");
  byId("printed").textContent =
    `${count(items.length, "image")}, printed ${new Date().toLocaleString("en-GB")}. ${origin}.`;
}

/** Saves a file under a name. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  html("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 0);
}

/** Copies a text; saves it where the browser gives no access to the clipboard (no HTTPS). */
export async function copy(text, button, name) {
  if (navigator.clipboard === undefined) {
    save(new Blob([text]), name);
    return;
  }
  await navigator.clipboard.writeText(text);
  if (button.textContent === COPIED) return;
  const label = button.textContent;
  button.textContent = COPIED;
  button.addEventListener("blur", () => { button.textContent = label; }, { once: true });
}

/** Runs the action of a button; its problem is shown below the buttons. */
export function onClick(id, action) {
  byId(id).addEventListener("click", async () => {
    const button = byId(id);
    byId("tools-fault").textContent = "";
    button.setAttribute("aria-busy", "true");
    try {
      await action(button);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      byId("tools-fault").textContent = `${error.title}: ${sentence(error.detail)}`;
    } finally {
      button.removeAttribute("aria-busy");
    }
  });
}

function documentOf({ code, title, detail }) {
  return { code, title, detail };
}
