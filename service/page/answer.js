/* An answer as it is shown: the disposition first, then what it rests on. */

import { classChart, classTable, entropyChart, keyed, thresholdChart } from "./charts.js";
import { html } from "./dom.js";
import { icon } from "./icons.js";
import { agreement, decimal, exact, passes, percent, shortened } from "./words.js";

const MARK = "malignant group";

/** What to do next, and why; an answer without a disposition says what is missing. */
export function verdict(answer) {
  if (answer.disposition === null) {
    return html(
      "div",
      { class: "verdict" },
      html("p", { class: "verdict-title" }, icon("prediction"), "No disposition"),
      html("p", { class: "pathway" }, answer.missing),
    );
  }
  const reasons = answer.reasons.map(({ words }) => html("li", {}, words));
  return html(
    "div",
    { class: "verdict" },
    html("p", { class: "verdict-title" }, icon(answer.disposition), answer.title),
    html("p", { class: "pathway" }, answer.pathway),
    reasons.length > 0
      ? [html("p", { class: "why" }, "Why"), html("ul", { class: "reasons" }, reasons)]
      : null,
  );
}

/** What a picture resembles, pass by pass. descriptions: of each class, by name. */
export function resemblance(answer, descriptions) {
  const { prediction } = answer;
  const nameOf = (name) => shortened(descriptions.get(name) ?? name);
  const malignant = answer.malignant?.classes ?? [];
  const names = Object.keys(prediction.probabilities);
  const classes = names
    .map((name, index) => ({
      name,
      words: nameOf(name),
      share: prediction.probabilities[name],
      points: prediction.trajectory_probabilities.map((row) => row[index]),
      marked: malignant.includes(name),
    }))
    .sort((one, other) => other.share - one.share);
  return part(
    "What it resembles",
    html("p", { class: "note" }, agreement(prediction, nameOf)),
    classChart(classes, MARK),
    html(
      "p",
      { class: "note legend" },
      html("span", { class: "swatch bar", "aria-hidden": "true" }),
      `mean of ${passes(prediction)} `,
      html("span", { class: "swatch point", "aria-hidden": "true" }),
      "one pass: the farther the points lie apart, the more the passes disagree",
    ),
    html("details", {}, html("summary", {}, "The same as a table"), classTable(classes)),
  );
}

/** The other figures that an answer rests on, and how it was made. */
export function figures(answer) {
  const { prediction } = answer;
  const classes = Object.keys(prediction.probabilities).length;
  return [
    html(
      "div",
      { class: "scales" },
      [malignantPart(answer), entropyPart(prediction, classes), familiarityPart(prediction)].filter(
        (each) => each !== null,
      ),
    ),
    warningsPart(prediction.warnings),
    originPart(answer),
  ].filter((each) => each !== null);
}

function malignantPart({ malignant, policy }) {
  if (malignant === null) return null;
  const { probability, urgent } = malignant;
  const side = probability >= urgent ? "at or above" : "below";
  return part(
    "Malignant group",
    html(
      "p",
      { class: "note" },
      html("strong", {}, percent(probability)),
      ` for ${malignant.classes.join(", ")} together, ${side} the urgent threshold of `,
      `${percent(urgent)}.`,
    ),
    thresholdChart({ share: probability, threshold: urgent, flagged: "above" }),
    policy.notice === null ? null : html("p", { class: "note" }, policy.notice),
  );
}

function entropyPart(prediction, classes) {
  const largest = Math.log(classes);
  return part(
    "How unsure the model is",
    html(
      "p",
      { class: "note" },
      html("strong", {}, `Entropy ${decimal(prediction.entropy)}`),
      ` of at most ${decimal(largest)} nats, in two parts:`,
    ),
    entropyChart({
      expected: prediction.expected_entropy,
      mutual: prediction.mutual_information,
      largest,
    }),
    html(
      "ul",
      { class: "keys" },
      keyed(
        "expected", "Expected entropy", prediction.expected_entropy,
        "nats: doubt within each pass. High where the picture itself is ambiguous.",
      ),
      keyed(
        "mutual", "Mutual information", prediction.mutual_information,
        "nats: disagreement between passes. High where the model knows too little.",
      ),
    ),
  );
}

function familiarityPart({ msp, ood, ood_threshold: threshold }) {
  const verdicts = {
    true: ", below the threshold: unlike the pictures that the model was trained on.",
    false: ", not below the threshold: the model does not find the picture unfamiliar.",
    null: ". There is no threshold for this number of samples.",
  };
  const compared = threshold === null ? "" : ` against ${exact(threshold)}`;
  return part(
    "How familiar the picture is",
    html(
      "p",
      { class: "note" },
      html("strong", {}, `Highest probability (MSP) ${exact(msp)}`),
      `${compared}${verdicts[ood]}`,
    ),
    thresholdChart({ share: msp, threshold, flagged: "below" }),
  );
}

function warningsPart(warnings) {
  if (warnings.length === 0) return null;
  return part(
    "Notes on this answer",
    html("ul", { class: "reasons" }, warnings.map((words) => html("li", {}, words))),
  );
}

function originPart({ prediction, policy, quality }) {
  const facts = [
    ["Model", `${prediction.model}, ${prediction.revision}`],
    ["Asked for", `${prediction.mode}, ${passes(prediction)}, seed ${prediction.seed}`],
    ...(policy === null ? [] : [["Policy", `version ${policy.version}, ${policy.hash}`]]),
    ...(quality === null
      ? []
      : [
          [
            "Picture",
            `brightness ${decimal(quality.brightness)}, sharpness ${quality.sharpness.toFixed(0)}, ` +
              `clipped dark ${percent(quality.dark_share)}, bright ${percent(quality.bright_share)}`,
          ],
        ]),
    ["Request", prediction.request_id],
  ];
  return html(
    "details",
    { class: "origin" },
    html("summary", {}, "How this answer was made"),
    html("dl", {}, facts.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])),
  );
}

function part(title, ...content) {
  return html("section", { class: "part" }, html("h4", {}, title), content);
}
