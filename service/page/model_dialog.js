/* The dialog with details and intended use of a model. */

import { byId, html } from "./dom.js";
import { shiftSection } from "./shift.js";
import { count, exact, percent } from "./text.js";

/** Opens the dialog. details: the response of GET /models/{name}. */
export function showModel(details, warning) {
  byId("model-title").textContent = `The model ${details.name}`;
  byId("model-facts").replaceChildren(
    html("h3", {}, "Intended use"),
    html("p", { class: "warning" }, warning),
    html(
      "p",
      {},
      "This model is for people who decide in which order they review lesions, and who review " +
        "all of them. It knows only the classes below, and only the cameras, sites and skin " +
        "types of its training data. It must not be used to decide on anyone’s care.",
    ),
    html("h3", {}, "Classes"),
    factList(details.classes.map(({ name, description }) => [name, description])),
    html("h3", {}, "Facts"),
    factList(modelFacts(details)),
    html("h3", {}, "Thresholds for images unlike the training images"),
    thresholdTable(details.thresholds),
    ...(details.shift ? [html("h3", {}, "Shift monitor"), ...shiftSection(details.shift)] : []),
  );
  byId("model-close").onclick = () => byId("model-dialog").close();
  byId("model-dialog").showModal();
}

function modelFacts(details) {
  const { provenance, image_limits: limits } = details;
  const known = [
    ["Revision", details.revision],
    ["Trained on", provenance.data],
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
          html("th", { scope: "row" }, passesOf(threshold)),
          html("td", {}, withKept(threshold.msp, threshold.kept)),
          html("td", {}, distanceThreshold(threshold.feature_distance)),
          html("td", {}, `${threshold.data}; ${count(threshold.images, "image")}`),
        ),
      ),
    ),
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
  return samples === "auto" ? "sampled, automatic" : `sampled, ${count(samples, "sample")}`;
}

function factList(pairs) {
  return html("dl", {}, pairs.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function mebibytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(0)} MiB`;
}
