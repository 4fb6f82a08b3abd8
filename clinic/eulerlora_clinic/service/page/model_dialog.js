/* The dialog with the card of a model and the facts of the server about it. */

import { byId, html, verbatim } from "./dom.js";
import { fixed, plural, t } from "./language.js";
import { render, sectionAbout, sectionsOf } from "./markdown.js";
import { shiftSection } from "./shift.js";
import { cases, dataName, exact, images, percent } from "./text.js";

const OPEN_SECTIONS = ["intended use", "out-of-scope", "licen", "classes"];

/** Opens the dialog. details: the response of GET /models/{name}. card: its card in Markdown. */
export function showModel(details, card) {
  const [introduction, ...sections] = sectionsOf(card);
  byId("model-title").textContent = t("The model {name}", details);
  byId("model-facts").replaceChildren(
    html("div", { lang: "en" }, render(introduction.lines)),
    ...sections.map(cardSection),
    ...(sectionAbout(sections, "classes") ? [] : [classesSection(details.classes)]),
    section(t("Served here"), false, factList(modelFacts(details))),
    section(
      t("Thresholds for images unlike the training images"), false,
      thresholdTable(details.thresholds),
    ),
    ...(details.shift ? [section(t("Shift monitor"), true, shiftSection(details.shift))] : []),
  );
  byId("model-close").onclick = () => byId("model-dialog").close();
  byId("model-dialog").showModal();
}

/** Shows what the model is not for, and its licence, with the disclaimer. card: in Markdown. */
export function showLimits(card) {
  const sections = sectionsOf(card);
  const parts = [["not-for", sectionAbout(sections, "out-of-scope")],
    ["licence", sectionAbout(sections, "licen")]];
  for (const [id, found] of parts) {
    const element = byId(id);
    const lines = found?.lines.map(plain) ?? [];
    element.replaceChildren(element.firstElementChild, html("div", { lang: "en" }, render(lines)));
    element.hidden = found === undefined;
  }
  byId("limits").hidden = parts.every(([, found]) => found === undefined);
}

/* Without names of splits, and without references to other sections, which are not on the page. */
function plain(line) {
  return dataName(line).replace(/(?:: |,? and )section [A-Z][^;.]*/g, "");
}

function cardSection({ title, lines }) {
  const isOpen = OPEN_SECTIONS.some((words) => title.toLowerCase().includes(words));
  return section(title, isOpen, render(lines), "en");
}

function section(title, open, content, lang = null) {
  return html("details", { open, lang }, html("summary", {}, html("h3", {}, title)), content);
}

/* A class is shown once if its description is its name. */
function classesSection(classes) {
  const hasCodes = classes.some(({ name, description }) => name !== description);
  const content = hasCodes
    ? factList(classes.map(({ name, description }) => [verbatim(name), t(description)]))
    : html("p", {}, classes.map(({ name }) => t(name)).join(", "));
  return section(t("Classes"), true, content);
}

function modelFacts(details) {
  const { provenance, image_limits: limits } = details;
  const known = [
    [t("Revision"), details.revision],
    [t("Trained on"), dataName(String(provenance.data ?? ""))],
    [t("Recipe"), provenance.recipe?.name ?? provenance.recipe],
    [t("Created"), provenance.date],
    [t("Hardware"), provenance.hardware],
    [t("Adapters"), details.adapters],
  ];
  const size = details.input_size;
  return [
    ...known.filter(([, value]) => ["string", "number"].includes(typeof value))
      .map(([title, value]) => [title, verbatim(value)]),
    [t("Input size"), t("{width} × {height} pixels", { width: size, height: size })],
    [t("Accepts"), t("{least} to {most} pixels per side, at most {size} per file", {
      least: limits.min_side, most: limits.max_side, size: mebibytes(details.max_body_bytes),
    })],
  ];
}

function thresholdTable(thresholds) {
  if (thresholds.length === 0) {
    return html("p", {}, t("This model has no thresholds and flags no image."));
  }
  const head = [
    t("Passes"), t("Highest probability below"), t("Feature distance above"), t("Measured on"),
  ];
  return html(
    "table",
    {},
    html("thead", {}, html("tr", {}, head.map((title) => html("th", { scope: "col" }, title)))),
    html(
      "tbody",
      {},
      thresholds.map((threshold) =>
        html(
          "tr",
          {},
          html("th", { scope: "row" }, passesOf(threshold.options)),
          html("td", {}, withKept(threshold.msp, threshold.kept)),
          html("td", {}, distanceThreshold(threshold.feature_distance)),
          html(
            "td",
            {},
            `${dataName(threshold.data)}; ${images(threshold.images)}. ${kept(threshold)}`,
          ),
        ),
      ),
    ),
  );
}

/* What the thresholds promise; "" if the checkpoint does not say. */
function kept({ tolerance }) {
  if (!tolerance) return "";
  const { share, confidence, units, unit } = tolerance;
  const few = confidence < 0.95 ? t("Too few to rely on.") : "";
  const promise = t("Keeps at least {share} of new cases with a confidence of {confidence} ({cases}).", {
    share: percent(share), confidence: percent(confidence), cases: cases(units, unit),
  });
  return `${promise} ${few}`;
}

function distanceThreshold(limit) {
  return limit ? withKept(limit.threshold, limit.kept) : t("no threshold");
}

function withKept(threshold, kept) {
  return t("{threshold}; {share} of these images are not flagged",
    { threshold: exact(threshold), share: percent(kept) });
}

function passesOf({ mode, samples }) {
  if (mode === "det") return t("fixed");
  return samples === "auto"
    ? t("sampled as needed")
    : plural(samples, "sampled, {n} sample", "sampled, {n} samples");
}

function factList(pairs) {
  return html("dl", {}, pairs.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function mebibytes(bytes) {
  return `${fixed(bytes / 2 ** 20, 0)} MiB`;
}
