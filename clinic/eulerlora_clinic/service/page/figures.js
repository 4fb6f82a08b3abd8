/* The figures behind the words of a card, collapsed, with their explanation. */

import { classTable, entropyChart, legend, thresholdChart } from "./charts.js";
import { html, part, verbatim } from "./dom.js";
import { fixed, t } from "./language.js";
import { shown } from "./shown.js";
import { capitalised, decimal, exact, passes, percent } from "./text.js";
import { viewsPart } from "./views.js";
import { sideOf } from "./words.js";

const MSP_VERDICTS = {
  true: t("Below its threshold: as low as for images unlike the training images."),
  false: t("Not below its threshold."),
  null: t("There is no threshold for this number of samples."),
};
const DISTANCE_VERDICTS = {
  true: t("Above its threshold: the features are far from those of the training images."),
  false: t("Not above its threshold: the features are like those of the training images."),
  null: t("There is no threshold for this number of samples."),
};

/** All figures of a result that are shown. rows: the classes, as for `classTable`. preview, names: as
 * for `viewsPart`. */
export function figures(result, rows, preview, names) {
  const { prediction } = result;
  const isShown = shown(result).figures !== null;
  return html(
    "details",
    { class: "figures" },
    html("summary", {}, t("Figures and how to read them")),
    html(
      "div",
      { class: "scales" },
      isShown ? [targetPart(result), entropyPart(prediction, rows.length)] : null,
      familiarityPart(prediction, isShown),
    ),
    isShown ? viewsPart(prediction, preview, names) : null,
    isShown ? part(t("Probabilities as a table"), classTable(rows)) : null,
    originPart(result),
  );
}

function targetPart({ target }) {
  if (target === null) return null;
  const { probability, routine, urgent } = target;
  const side = {
    above: t("At or above the urgent threshold."),
    between: t("Between the thresholds."),
    below: t("Below the routine threshold."),
  }[sideOf(target)];
  return part(
    capitalised(t(target.name)),
    note(t("{probability}, routine below {routine}, urgent from {urgent}", {
      probability: exact(probability), routine: exact(routine), urgent: exact(urgent),
    }), side),
    thresholdChart({ probability, threshold: urgent, flagged: "above" }),
  );
}

function entropyPart(prediction, classes) {
  const largest = Math.log(classes);
  const { expected_entropy: expected, mutual_information: mutual } = prediction;
  return part(
    t("Uncertainty"),
    note(
      t("Entropy {value}", { value: decimal(prediction.entropy) }),
      t("of at most {largest} nats, in two parts:", { largest: decimal(largest) }),
    ),
    entropyChart({ expected, mutual, largest }),
    html(
      "ul",
      { class: "keys" },
      legend(
        "expected", t("Expected entropy"), expected,
        t("nats, within the passes. High if the image resembles several classes."),
      ),
      legend(
        "mutual", t("Mutual information"), mutual,
        t("nats, between the passes. High if they disagree. Low does not mean that the image is " +
          "familiar: passes can agree on an image unlike the training images."),
      ),
    ),
  );
}

function familiarityPart(prediction, isShown) {
  const { msp, ood, ood_threshold: threshold, ood_scores: scores } = prediction;
  const highest = [
    note(t("Highest probability (MSP) {value}", { value: against(msp, threshold) }), MSP_VERDICTS[ood]),
    thresholdChart({ probability: msp, threshold, flagged: "below" }),
  ];
  return part(
    t("Familiarity"),
    isShown ? highest : null,
    distanceContent(scores?.feature_distance ?? null),
  );
}

/* The scale of the chart ends at twice the threshold. */
function distanceContent(distance) {
  if (distance === null) return null;
  const { value, threshold, flagged } = distance;
  const chart = { probability: value / (2 * threshold), threshold: 0.5, flagged: "above" };
  return [
    note(t("Feature distance {value}", { value: against(value, threshold) }), DISTANCE_VERDICTS[flagged]),
    threshold === null ? null : thresholdChart(chart),
  ];
}

function against(value, threshold) {
  if (threshold === null) return exact(value);
  return t("{value}, threshold {threshold}", { value: exact(value), threshold: exact(threshold) });
}

function note(value, verdict) {
  return html("p", { class: "note" }, html("strong", {}, value), " ", verdict);
}

function originPart({ prediction, policy, quality }) {
  const facts = [
    [t("Model"), verbatim(`${prediction.model}, ${prediction.revision}`)],
    [t("Sampling"), t("{passes}, seed {seed}",
      { passes: passes(prediction), seed: String(prediction.seed) })],
    policy && [t("Policy"), [t("version {version}", policy), ", ", verbatim(policy.hash)]],
    quality && [
      t("Image"),
      t("{width} × {height} pixels, brightness {brightness}, sharpness {sharpness}, clipped dark " +
        "{dark}, bright {bright}", {
        width: quality.width, height: quality.height, brightness: decimal(quality.brightness),
        sharpness: fixed(quality.sharpness, 0), dark: percent(quality.dark_share),
        bright: percent(quality.bright_share),
      }),
    ],
    [t("Request"), verbatim(prediction.request_id)],
  ].filter(Boolean);
  return part(
    t("Origin of this result"),
    html("dl", {}, facts.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])),
  );
}
