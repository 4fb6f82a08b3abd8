/* What a model is, and what it is for. */

import { byId, html } from "./dom.js";
import { counted, exact, percent } from "./words.js";

/** Opens the dialog with the facts of a model, as GET /models/{name} tells them. */
export function showModel(facts, warning) {
  byId("model-title").textContent = `The model ${facts.name}`;
  byId("model-facts").replaceChildren(
    html("h3", {}, "Intended use"),
    html("p", { class: "warning" }, warning),
    html(
      "p",
      {},
      "It is meant for people who decide whose turn it is among several lesions, and who look " +
        "at each of them anyway. It knows only the classes below, from the cameras, sites and " +
        "skin types of its training data, and must not be used to decide on anyone’s care.",
    ),
    html("h3", {}, "Classes"),
    factList(facts.classes.map(({ name, description }) => [name, description])),
    html("h3", {}, "Facts"),
    factList(modelFacts(facts)),
    html("h3", {}, "When a picture counts as unfamiliar"),
    thresholdTable(facts.thresholds),
  );
  byId("model-close").onclick = () => byId("model-dialog").close();
  byId("model-dialog").showModal();
}

function modelFacts(facts) {
  const { provenance, image_limits: limits } = facts;
  const known = [
    ["Revision", facts.revision],
    ["Trained on", provenance.data],
    ["Recipe", provenance.recipe?.name ?? provenance.recipe],
    ["Made on", provenance.date],
    ["Hardware", provenance.hardware],
    ["Adapters", facts.adapters],
    ["Looks at", `${facts.input_size} × ${facts.input_size} pixels`],
    [
      "Takes",
      `${limits.min_side} to ${limits.max_side} pixels a side, at most ` +
        `${megabytes(facts.max_body_bytes)} a file`,
    ],
  ];
  return known.filter(([, value]) => ["string", "number"].includes(typeof value));
}

function thresholdTable(thresholds) {
  if (thresholds.length === 0) {
    return html("p", {}, "This model has no thresholds: it cannot say.");
  }
  const head = ["Passes", "Highest probability below", "Familiar pictures kept", "Measured on"];
  return html(
    "table",
    {},
    html("thead", {}, html("tr", {}, head.map((words) => html("th", { scope: "col" }, words)))),
    html(
      "tbody",
      {},
      thresholds.map((each) =>
        html(
          "tr",
          {},
          html("th", { scope: "row" }, passesOf(each)),
          html("td", {}, exact(each.msp)),
          html("td", {}, percent(each.kept)),
          html("td", {}, `${each.data}; ${counted(each.images, "picture")}`),
        ),
      ),
    ),
  );
}

function passesOf({ mode, samples }) {
  if (mode === "det") return "fixed";
  return samples === "auto" ? "sampled, as many as it takes" : `sampled, ${counted(samples, "sample")}`;
}

function factList(pairs) {
  return html("dl", {}, pairs.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function megabytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(0)} MiB`;
}
