/* How familiar an image is to the model: highest probability and feature distance. */

import { thresholdChart } from "./charts.js";
import { html, part } from "./dom.js";
import { exact } from "./text.js";

const MSP_VERDICTS = {
  true: ", below the threshold: as low as for images unlike the training images.",
  false: ", not below the threshold.",
  null: ". There is no threshold for this number of samples.",
};
const DISTANCE_VERDICTS = {
  true: ", above the threshold: the features are far from those of the training images.",
  false: ", not above the threshold: the features are like those of the training images.",
  null: ". There is no threshold for this number of samples.",
};

/** The scores of an image, each with its threshold. */
export function familiarityPart({ msp, ood, ood_threshold: threshold, ood_scores: scores }) {
  return part(
    "Familiarity of the image",
    scoreNote("Highest probability (MSP)", msp, threshold, MSP_VERDICTS[ood]),
    thresholdChart({ probability: msp, threshold, flagged: "below" }),
    distanceContent(scores?.feature_distance ?? null),
  );
}

/* The scale of the chart ends at twice the threshold. */
function distanceContent(distance) {
  if (distance === null) return null;
  const { value, threshold, flagged } = distance;
  const note = scoreNote("Feature distance", value, threshold, DISTANCE_VERDICTS[flagged]);
  if (threshold === null) return note;
  const chart = thresholdChart({
    probability: value / (2 * threshold), threshold: 0.5, flagged: "above",
  });
  return [note, chart];
}

function scoreNote(name, value, threshold, verdict) {
  const compared = threshold === null ? "" : ` against ${exact(threshold)}`;
  return html(
    "p",
    { class: "note" },
    html("strong", {}, `${name} ${exact(value)}`),
    `${compared}${verdict}`,
  );
}
