/* What leaves the page: CSV, JSON, print, and the request for use via API. */

import { csv } from "./csv.js";
import { byId, html } from "./dom.js";
import { now, t } from "./language.js";
import { NOT_ASKED } from "./problems.js";
import { images } from "./text.js";

const COPIED = t("Copied");

/** The items as CSV. */
export function asCsv(items) {
  return csv(items, problemOf);
}

/** The items as JSON: the answers of the service, each with its file name, identifier, note and
 * lesion, and with what was decided. */
export function asJson(items) {
  const entries = items.map((item) => {
    const { name, identifier, note, lesion, result, decided } = item;
    const file = { file: name, identifier, note, lesion };
    const problem = problemOf(item);
    if (problem !== null) return { ...file, problem };
    const decision = decided === null ? {} : { decided };
    const answer = result.disposition === null ? result.prediction : result;
    return { ...file, ...decision, problem, ...answer };
  });
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
    [prediction.model, prediction.revision, policy && t("policy version {version}", policy)]
      .filter(Boolean).join(", "),
  );
  const origin = [...new Set(origins)].join("; ");
  byId("printed").textContent =
    t("{images}, printed {date}. {origin}.", { images: images(items.length), date: now(), origin });
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

/* The problem document of an item, also while an earlier result is shown; null with a result. */
function problemOf({ isPending, problem }) {
  if (isPending) return NOT_ASKED;
  return problem && { code: problem.code, title: problem.title, detail: problem.detail };
}
