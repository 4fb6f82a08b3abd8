/* The figures behind the words of a card, collapsed, with their explanation. */

import { classTable, entropyChart, legend, thresholdChart } from "./charts.js";
import { html, part } from "./dom.js";
import { shown } from "./shown.js";
import { capitalised, decimal, exact, passes, percent } from "./text.js";
import { viewsPart } from "./views.js";
import { sideOf } from "./words.js";

const MSP_VERDICTS = {
  true: "Below its threshold: as low as for images unlike the training images.",
  false: "Not below its threshold.",
  null: "There is no threshold for this number of samples.",
};
const DISTANCE_VERDICTS = {
  true: "Above its threshold: the features are far from those of the training images.",
  false: "Not above its threshold: the features are like those of the training images.",
  null: "There is no threshold for this number of samples.",
};

/** All figures of a result that are shown. rows: the classes, as for `classTable`. preview, names: as
 * for `viewsPart`. */
export function figures(result, rows, preview, names) {
  const { prediction } = result;
  const isShown = shown(result).figures !== null;
  return html(
    "details",
    { class: "figures" },
    html("summary", {}, "Figures and how to read them"),
    html(
      "div",
      { class: "scales" },
      isShown ? [targetPart(result), entropyPart(prediction, rows.length)] : null,
      familiarityPart(prediction, isShown),
    ),
    isShown ? viewsPart(prediction, preview, names) : null,
    isShown ? part("Probabilities as a table", classTable(rows)) : null,
    originPart(result),
  );
}

function targetPart({ target }) {
  if (target === null) return null;
  const { probability, routine, urgent } = target;
  const side = {
    above: "At or above the urgent threshold.",
    between: "Between the thresholds.",
    below: "Below the routine threshold.",
  }[sideOf(target)];
  return part(
    capitalised(target.name),
    note(`${exact(probability)}, routine below ${exact(routine)}, urgent from ${exact(urgent)}`, side),
    thresholdChart({ probability, threshold: urgent, flagged: "above" }),
  );
}

function entropyPart(prediction, classes) {
  const largest = Math.log(classes);
  const { expected_entropy: expected, mutual_information: mutual } = prediction;
  return part(
    "Uncertainty",
    note(`Entropy ${decimal(prediction.entropy)}`, `of at most ${decimal(largest)} nats, in two parts:`),
    entropyChart({ expected, mutual, largest }),
    html(
      "ul",
      { class: "keys" },
      legend(
        "expected", "Expected entropy", expected,
        "nats, within the passes. High if the image resembles several classes.",
      ),
      legend(
        "mutual", "Mutual information", mutual,
        "nats, between the passes. High if they disagree. Low does not mean that the image is " +
          "familiar: passes can agree on an image unlike the training images.",
      ),
    ),
  );
}

function familiarityPart(prediction, isShown) {
  const { msp, ood, ood_threshold: threshold, ood_scores: scores } = prediction;
  const highest = [
    note(`Highest probability (MSP) ${against(msp, threshold)}`, MSP_VERDICTS[ood]),
    thresholdChart({ probability: msp, threshold, flagged: "below" }),
  ];
  return part(
    "Familiarity",
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
    note(`Feature distance ${against(value, threshold)}`, DISTANCE_VERDICTS[flagged]),
    threshold === null ? null : thresholdChart(chart),
  ];
}

function against(value, threshold) {
  return threshold === null ? exact(value) : `${exact(value)}, threshold ${exact(threshold)}`;
}

function note(value, verdict) {
  return html("p", { class: "note" }, html("strong", {}, value), " ", verdict);
}

function originPart({ prediction, policy, quality }) {
  const facts = [
    ["Model", `${prediction.model}, ${prediction.revision}`],
    ["Sampling", `${prediction.mode}, ${passes(prediction)}, seed ${prediction.seed}`],
    policy && ["Policy", `version ${policy.version}, ${policy.hash}`],
    quality && [
      "Image",
      `${quality.width} × ${quality.height} pixels, brightness ${decimal(quality.brightness)}, ` +
        `sharpness ${quality.sharpness.toFixed(0)}, clipped dark ${percent(quality.dark_share)}, ` +
        `bright ${percent(quality.bright_share)}`,
    ],
    ["Request", prediction.request_id],
  ].filter(Boolean);
  return part(
    "Origin of this result",
    html("dl", {}, facts.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])),
  );
}
