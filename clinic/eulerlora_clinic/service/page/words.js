/* A result in words: what the image looks like, why it goes first, whether the passes agree. */

import { AGREED, UNCLEAR, UNFAMILIAR } from "./item.js";
import { either, plural, t } from "./language.js";
import { QUALITY_FAULTS } from "./shown.js";
import { capitalised, dataName, passes, percent, percents, shortened } from "./text.js";

const MAJORITY = 0.5;
const SHOWN_SHARE = 0.01; // a second class below it is left out
const LOW_SHARE = 0.1;
const FEW_PIXELS = 300; // of the shorter side: details that a person looks for are lost
const FAULTS = {
  too_small: t("too small"), too_dark: t("too dark"), too_bright: t("too bright"), blurred: t("blurred"),
};
const CASES = {
  lesion: t("a case is a lesion"), group: t("a case is a group"), picture: t("a case is a picture"),
};

/** The words of a result. `names`: the description of each class, by code.
 * @typedef {{word: string, sentence: string}} Statement */

/** What is wrong with the image in a word or two; null if nothing is, or it was not measured. */
export function qualityFault({ quality, reasons }) {
  if (quality === null) return null;
  const faults = reasons.map(({ code }) => code).filter((code) => QUALITY_FAULTS.includes(code));
  if (faults.length > 0) return faults.map((code) => FAULTS[code]).join(", ");
  return hasFewPixels(quality) ? t("few pixels") : null;
}

export function hasFewPixels({ width, height }) {
  return Math.min(width, height) < FEW_PIXELS;
}

export const FEW_PIXELS_MEANING = t(
  "Few pixels: the shorter side has fewer than {n}, so that details which a person looks for may be " +
    "lost. The suggestion does not depend on it.",
  { n: FEW_PIXELS },
);

/** The one or two classes that the image looks like most, with their probabilities. */
export function looksLike({ probabilities }, names) {
  const [first, second] = ranking(probabilities);
  return [first, second]
    .filter((name) => name === first || probabilities[name] >= SHOWN_SHARE)
    .map((name) => `${names(name)} ${percent(probabilities[name])}`)
    .join(", ");
}

/** Where the probability of the target lies: "below" the routine threshold, "above" the urgent one,
 * or "between". */
export function sideOf({ probability, routine, urgent }) {
  if (probability < routine) return "below";
  return probability < urgent ? "between" : "above";
}

/** The same in words. The routine line is low, so that few images of the target are below it. */
export function lineWords({ target, prediction }) {
  const side = sideOf(target);
  if (side === "above") return t("above the urgent line");
  if (side === "below") return t("below the routine line");
  const isLow = target.probability < LOW_SHARE && !target.classes.includes(prediction.label);
  return isLow ? t("low, but above the routine line") : t("above the routine line");
}

/** Whether the passes put the same class first. */
export function agreementWords(prediction) {
  if (prediction.trajectories === 1) return t("one pass");
  return votesOf(prediction).size > 1 ? t("passes disagree") : t("passes agree");
}

/** What the image looks like.
 * @returns {Statement} */
export function resemblance({ prediction, reasons }, names) {
  const isUnclear = reasons.some(({ code }) => code === "high_entropy") || prediction.msp < MAJORITY;
  const sentence = [
    isUnclear ? t("No class stands out.") : null,
    t("It is compared only with the classes that the model knows; this is no diagnosis."),
  ];
  return { word: looksLike(prediction, names), sentence: sentence.filter(Boolean).join(" ") };
}

/** Why the image goes first, or does not.
 * @returns {Statement | null}  null without a policy */
export function decision({ target, policy, prediction }, names) {
  if (target === null) return null;
  const side = sideOf(target);
  const [share, line] = percents(
    target.probability,
    side === "above" ? target.urgent : target.routine,
  );
  const sentence = [
    t("For {classes} together: {side} of {line}.",
      { classes: either(target.classes.map(names)), side: lineWords({ target, prediction }), line }),
    {
      above: t("From this line on, an image goes first."),
      between: t("From this line on, a clinician looks at an image; from {urgent} on, it goes first.",
        { urgent: percent(target.urgent) }),
      below: t("From this line on, a clinician looks at an image. Being below rules out no disease."),
    }[side],
    policy.notice ? t(policy.notice) : measuredSentence(policy.measured[0], target),
  ];
  return { word: share, sentence: sentence.filter(Boolean).join(" ") };
}

/* What the thresholds did in the first test, which resembles the training images most. */
function measuredSentence(measured, { name }) {
  if (measured === undefined) return null;
  const seen = t(
    "In tests, {seen} of the cases of {critical} were above the routine line or unfamiliar, and so " +
      "were {others} of the harmless ones ({data}; {unit}).",
    {
      seen: percent(measured.sensitivity), critical: t(measured.critical),
      others: percent(1 - measured.specificity), data: dataName(measured.data),
      unit: CASES[measured.unit],
    },
  );
  if (measured.predictive_value === null) return seen;
  const share = percent(measured.predictive_value);
  const urgent = t("Of the urgent cases, {share} were {target}.", { share, target: t(name) });
  return `${seen} ${urgent}`;
}

/** Whether the passes agree, and what a pass is.
 * @returns {Statement} */
export function agreement({ prediction }, names) {
  const votes = [...votesOf(prediction)].sort((one, other) => other[1] - one[1]);
  const meaning = prediction.mode === "stoch"
    ? t("A pass runs the model once, with random parts of it.")
    : t("A pass runs one part of the model.");
  const [first] = votes[0];
  const counts = votes.map(([name, number]) =>
    plural(number, "{n} puts {name} first", "{n} put {name} first", { name: names(name) }));
  const result = votes.length > 1
    ? t("Of {passes}, {votes}.", { passes: passes(prediction), votes: counts.join(", ") })
    : t("All {passes} put {name} first. They can be wrong together.",
      { passes: passes(prediction), name: names(first) });
  return { word: capitalised(agreementWords(prediction)), sentence: `${result} ${meaning}` };
}

/** How familiar the image is to the model.
 * @returns {Statement} */
export function familiarity({ unfamiliar, ood }) {
  if (unfamiliar) {
    return {
      word: t("Unlike the images it learned from"),
      sentence: t("Another camera, another condition, or something else. A person must look at it: " +
        "what the figures of the model are worth for it is unknown, so they are not shown."),
    };
  }
  if (ood) {
    return {
      word: t("Perhaps unlike the images it learned from"),
      sentence: t("No class stands out, as with images of something else."),
    };
  }
  if ((unfamiliar ?? null) === null && ood === null) {
    return { word: t("Unknown"), sentence: t("The model has no threshold for this number of passes.") };
  }
  return {
    word: t("Familiar"),
    sentence: t("Not flagged as unlike the images that it learned from. Some unlike images are not " +
      "flagged."),
  };
}

/** The group of a prediction without a disposition, in the list. */
export function groupOf(prediction) {
  if (prediction.unfamiliar) return UNFAMILIAR;
  const isClear = votesOf(prediction).size === 1 && prediction.msp >= MAJORITY && !prediction.ood;
  return isClear ? AGREED : UNCLEAR;
}

/** How many passes put their class first, by class. */
function votesOf({ probabilities, trajectory_probabilities: rows }) {
  const classes = Object.keys(probabilities);
  const votes = new Map();
  for (const row of rows) {
    const first = classes[row.indexOf(Math.max(...row))];
    votes.set(first, (votes.get(first) ?? 0) + 1);
  }
  return votes;
}

function ranking(probabilities) {
  return Object.keys(probabilities).sort((one, other) => probabilities[other] - probabilities[one]);
}

/** A function from a class code to its description, without the parts in brackets.
 * @param {{name: string, description: string}[]} classes */
export function namesOf(classes) {
  const byCode = new Map(classes.map(({ name, description }) => [name, shortened(t(description))]));
  return (code) => byCode.get(code) ?? code;
}
