/* The dialog with the card of a model and the facts of the server about it. */

import { byId, html } from "./dom.js";
import { render, sectionAbout, sectionsOf } from "./markdown.js";
import { shiftSection } from "./shift.js";
import { count, dataName, exact, percent } from "./text.js";

const OPEN_SECTIONS = ["intended use", "out-of-scope", "licen", "classes"];

/** Opens the dialog. details: the response of GET /models/{name}. card: its card in Markdown. */
export function showModel(details, card) {
  const [introduction, ...sections] = sectionsOf(card);
  byId("model-title").textContent = `The model ${details.name}`;
  byId("model-facts").replaceChildren(
    ...render(introduction.lines),
    ...sections.map(cardSection),
    ...(sectionAbout(sections, "classes") ? [] : [classesSection(details.classes)]),
    section("Served here", false, factList(modelFacts(details))),
    section(
      "Thresholds for images unlike the training images", false,
      thresholdTable(details.thresholds),
    ),
    ...(details.shift ? [section("Shift monitor", true, shiftSection(details.shift))] : []),
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
    element.replaceChildren(element.firstElementChild, ...render(lines));
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
  return section(title, isOpen, render(lines));
}

function section(title, open, content) {
  return html("details", { open }, html("summary", {}, html("h3", {}, title)), content);
}

/* A class is shown once if its description is its name. */
function classesSection(classes) {
  const hasCodes = classes.some(({ name, description }) => name !== description);
  const content = hasCodes
    ? factList(classes.map(({ name, description }) => [name, description]))
    : html("p", {}, classes.map(({ name }) => name).join(", "));
  return section("Classes", true, content);
}

function modelFacts(details) {
  const { provenance, image_limits: limits } = details;
  const known = [
    ["Revision", details.revision],
    ["Trained on", dataName(String(provenance.data ?? ""))],
    ["Recipe", provenance.recipe?.name ?? provenance.recipe],
    ["Created", provenance.date],
    ["Hardware", provenance.hardware],
    ["Adapters", details.adapters],
    ["Input size", `${details.input_size} × ${details.input_size} pixels`],
    [
      "Accepts",
      `${limits.min_side} to ${limits.max_side} pixels per side, at most ` +
        `${mebibytes(details.max_body_bytes)} per file`,
    ],
  ];
  return known.filter(([, value]) => ["string", "number"].includes(typeof value));
}

function thresholdTable(thresholds) {
  if (thresholds.length === 0) {
    return html("p", {}, "This model has no thresholds and flags no image.");
  }
  const head = ["Passes", "Highest probability below", "Feature distance above", "Measured on"];
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
            `${dataName(threshold.data)}; ${count(threshold.images, "image")}${kept(threshold)}`,
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
  const few = confidence < 0.95 ? " Too few to rely on." : "";
  return (
    `. Keeps at least ${percent(share)} of new ${unit}s with a confidence of ` +
    `${percent(confidence)} (${count(units, unit)}).${few}`
  );
}

function distanceThreshold(limit) {
  return limit ? withKept(limit.threshold, limit.kept) : "no threshold";
}

function withKept(threshold, kept) {
  return `${exact(threshold)}; ${percent(kept)} of these images are not flagged`;
}

function passesOf({ mode, samples }) {
  if (mode === "det") return "fixed";
  return samples === "auto" ? "sampled as needed" : `sampled, ${count(samples, "sample")}`;
}

function factList(pairs) {
  return html("dl", {}, pairs.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function mebibytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(0)} MiB`;
}
