/* What leaves the page: report, CSV, JSON, print, and the request for use via API. */

import { byId, html } from "./dom.js";
import { reportThumbnail } from "./preview.js";
import { NOT_ASKED, Problem, sentence } from "./problems.js";
import { count } from "./text.js";

const BYTE_ORDER_MARK = "\ufeff"; // without it, spreadsheets do not read UTF-8
const COPIED = "Copied";
const FORMULA = /^[=+\-@\t\r\n]/; // a spreadsheet reads such a text as a formula

/** The items as the service's report takes them. Names, identifiers, lesions and notes are not sent:
 * `named` fills them in. */
export async function reportImages(items) {
  const tokens = tokensOf(items);
  return Promise.all(
    items.map(async (item) => ({
      file: tokens.get(item),
      ...(problemOf(item) === null ? { result: item.result } : { problem: problemOf(item) }),
      thumbnail: await reportThumbnail(await item.preview),
      lesion: lesionToken(item, items),
    })),
  );
}

/** The report of `reportImages` with the names, identifiers, lesions and notes of the items.
 * @param {Blob} report
 * @param {"html" | "csv"} format */
export async function named(report, items, format) {
  const byToken = new Map([...tokensOf(items)].map(([item, token]) => [token, item]));
  const lesions = new Map(items.map((item) => [lesionToken(item, items), item.lesion.trim()]));
  const text = await report.text(); // without a byte order mark
  const filled = format === "html"
    ? text.replace(/<bdi>(image-\d{4})<\/bdi>/g, (_, token) => nameMarkup(byToken.get(token)))
      .replace(/<bdi>(lesion-\d{4})<\/bdi>/g, (_, token) => marked(lesions.get(token)))
    : BYTE_ORDER_MARK + text.replace(/^file(?=,)/, "file,identifier,note")
      .replace(/^(image-\d{4}),(lesion-\d{4}|)(?=,)/gm, (_, token, lesion) =>
        `${nameCells(byToken.get(token))},${lesion && cellOf(lesions.get(lesion))}`);
  return new Blob([filled], { type: report.type });
}

/* The report sorts by name: the order of the tokens is that of the names. */
function tokensOf(items) {
  const sorted = [...items].sort((one, other) => one.name.localeCompare(other.name));
  return new Map(sorted.map((item, index) => [item, `image-${String(index + 1).padStart(4, "0")}`]));
}

/* Of equal texts; null for an item without one. */
function lesionToken(item, items) {
  const lesions = [...new Set(items.map(({ lesion }) => lesion.trim()))].filter(Boolean).sort();
  const index = lesions.indexOf(item.lesion.trim());
  return index < 0 ? null : `lesion-${String(index + 1).padStart(4, "0")}`;
}

function nameMarkup({ name, identifier, note }) {
  const parts = [["identifier", identifier], ["remark", note]]
    .filter(([, text]) => text !== "")
    .map(([kind, text]) => html("span", { class: kind }, printable(text)));
  return marked(name) + parts.map((one) => one.outerHTML).join("");
}

function nameCells({ name, identifier, note }) {
  const path = FORMULA.test(name) ? `./${name}` : name; // names the same file
  return [`"${quoted(path)}"`, cellOf(identifier), cellOf(note)].join(",");
}

function cellOf(text) {
  return `"${quoted(FORMULA.test(text) ? `'${text}` : text)}"`;
}

function quoted(text) {
  return printable(text).replaceAll('"', '""');
}

function marked(text) {
  return html("bdi", {}, printable(text)).outerHTML;
}

/* Control characters, and marks that reverse a text, as escapes. */
function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (one) =>
    `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
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

/* The problem document of an item, also while an earlier result is shown; null with a result. */
function problemOf({ isPending, problem }) {
  if (isPending) return NOT_ASKED;
  return problem && { code: problem.code, title: problem.title, detail: problem.detail };
}
