/* The content of a card with a result: the disposition first, then the evidence. */

import { classChart, classTable, entropyChart, legend, thresholdChart } from "./charts.js";
import { html, part } from "./dom.js";
import { familiarityPart } from "./familiarity.js";
import { icon } from "./icons.js";
import { agreement, decimal, passes, percent, shortened } from "./text.js";

const TITLE = "Class probabilities";
const MARK = "malignant group";
const UNFAMILIAR = "This image is unfamiliar to the model: its figures say nothing about this image.";

/** The disposition with its reasons, or the reason why there is none. */
export function verdict(result) {
  if (result.disposition === null) {
    return html(
      "div",
      { class: "verdict" },
      html("p", { class: "verdict-title" }, icon("prediction"), "No disposition"),
      html("p", { class: "pathway" }, result.policyProblem),
    );
  }
  const reasons = result.reasons.map(({ words }) => html("li", {}, words));
  return html(
    "div",
    { class: "verdict" },
    html("p", { class: "verdict-title" }, icon(result.disposition), result.title),
    html("p", { class: "pathway" }, result.pathway),
    reasons.length > 0
      ? [html("p", { class: "why" }, "Why"), html("ul", { class: "reasons" }, reasons)]
      : null,
  );
}

/** Class probabilities of every pass; collapsed for an unfamiliar image. descriptions: map from
 * class name to description. */
export function classes(result, descriptions) {
  const { prediction } = result;
  const nameOf = (name) => shortened(descriptions.get(name) ?? name);
  const malignant = result.malignant?.classes ?? [];
  const names = Object.keys(prediction.probabilities);
  const rows = names
    .map((name, index) => ({
      name,
      label: nameOf(name),
      probability: prediction.probabilities[name],
      points: prediction.trajectory_probabilities.map((row) => row[index]),
      marked: malignant.includes(name),
    }))
    .sort((one, other) => other.probability - one.probability);
  const chart = [
    html("p", { class: "note" }, agreement(prediction, nameOf)),
    classChart(rows, MARK),
    html(
      "p",
      { class: "note legend" },
      html("span", { class: "swatch bar", "aria-hidden": "true" }),
      `mean of ${passes(prediction)} `,
      html("span", { class: "swatch point", "aria-hidden": "true" }),
      "one pass; a wide spread means that the passes disagree",
    ),
    collapsed("Show as a table", classTable(rows)),
  ];
  if (!prediction.unfamiliar) return part(TITLE, chart);
  return part(
    TITLE,
    html("p", { class: "note" }, html("strong", {}, UNFAMILIAR)),
    collapsed("Show the probabilities", chart),
  );
}

/** The remaining evidence and the origin of the result. */
export function details(result) {
  const { prediction } = result;
  const classes = Object.keys(prediction.probabilities).length;
  return [
    html(
      "div",
      { class: "scales" },
      [malignantPart(result), entropyPart(prediction, classes), familiarityPart(prediction)].filter(
        (section) => section !== null,
      ),
    ),
    warningsPart(prediction.warnings),
    originPart(result),
  ].filter((section) => section !== null);
}

function malignantPart({ malignant, policy, prediction }) {
  if (malignant === null) return null;
  const { probability, urgent } = malignant;
  const side = probability >= urgent ? "at or above" : "below";
  const compared = prediction.unfamiliar
    ? "which says nothing about an unfamiliar image."
    : `${side} the urgent threshold of ${percent(urgent)}.`;
  return part(
    "Malignant group",
    html(
      "p",
      { class: "note" },
      html("strong", {}, percent(probability)),
      ` for ${malignant.classes.join(", ")} together, ${compared}`,
    ),
    thresholdChart({ probability, threshold: urgent, flagged: "above" }),
    policy.notice === null ? null : html("p", { class: "note" }, policy.notice),
  );
}

function entropyPart(prediction, classes) {
  const largest = Math.log(classes);
  return part(
    "Uncertainty",
    html(
      "p",
      { class: "note" },
      html("strong", {}, `Entropy ${decimal(prediction.entropy)}`),
      ` of at most ${decimal(largest)} nats, the sum of two parts:`,
    ),
    entropyChart({
      expected: prediction.expected_entropy,
      mutual: prediction.mutual_information,
      largest,
    }),
    html(
      "ul",
      { class: "keys" },
      legend(
        "expected", "Expected entropy", prediction.expected_entropy,
        "nats: uncertainty within every pass. High for an ambiguous image.",
      ),
      legend(
        "mutual", "Mutual information", prediction.mutual_information,
        "nats: disagreement between passes. High for too little similar training data.",
      ),
    ),
  );
}

function warningsPart(warnings) {
  if (warnings.length === 0) return null;
  return part(
    "Warnings",
    html("ul", { class: "reasons" }, warnings.map((warning) => html("li", {}, warning.message))),
  );
}

function originPart({ prediction, policy, quality }) {
  const facts = [
    ["Model", `${prediction.model}, ${prediction.revision}`],
    ["Sampling", `${prediction.mode}, ${passes(prediction)}, seed ${prediction.seed}`],
    ...(policy === null ? [] : [["Policy", `version ${policy.version}, ${policy.hash}`]]),
    ...(quality === null
      ? []
      : [
          [
            "Image",
            `brightness ${decimal(quality.brightness)}, sharpness ${quality.sharpness.toFixed(0)}, ` +
              `clipped dark ${percent(quality.dark_share)}, bright ${percent(quality.bright_share)}`,
          ],
        ]),
    ["Request", prediction.request_id],
  ];
  return html(
    "details",
    { class: "origin" },
    html("summary", {}, "Origin of this result"),
    html("dl", {}, facts.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])),
  );
}

function collapsed(summary, content) {
  return html("details", {}, html("summary", {}, summary), content);
}
