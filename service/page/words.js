/* A result in words: the decision, how sure the model is, how familiar the image is. */

import { SURE, UNFAMILIAR, UNSURE } from "./item.js";
import { either, passes, percent, percents, shortened } from "./text.js";

const UNFAMILIAR_REASON = "unfamiliar";
const QUALITY_FAULTS = ["too_small", "too_dark", "too_bright", "blurred"];
const MAJORITY = 0.5;

/** The words of a result. `names`: the description of each class, by code.
 * @typedef {{word: string, sentence: string}} Statement */

/** The quality of the image in a word or two; null if it was not measured. */
export function qualityWords(result) {
  if (result.quality === null) return null;
  const codes = result.reasons.map(({ code }) => code);
  const faults = codes.filter((code) => QUALITY_FAULTS.includes(code));
  return faults.length === 0 ? "ok" : faults.map((code) => code.replaceAll("_", " ")).join(", ");
}

/** The reasons that count, and the others: no figure of an unfamiliar image counts. */
export function reasonsOf({ reasons, prediction }) {
  const counts = ({ code }) =>
    !prediction.unfamiliar || code === UNFAMILIAR_REASON || QUALITY_FAULTS.includes(code);
  return {
    counting: reasons.filter(counts),
    others: reasons.filter((reason) => !counts(reason)),
  };
}

/** Why the image goes first, or does not.
 * @returns {Statement | null}  null without a policy */
export function decision({ target, policy, prediction }, names) {
  if (target === null) return null;
  const group = either(target.classes.map(names));
  const [share, urgent] = percents(target.probability, target.urgent);
  if (prediction.unfamiliar) {
    const sentence = `${share} for ${group} together. On an unfamiliar image this says nothing.`;
    return { word: "No percentage counts", sentence };
  }
  const reached = target.probability >= target.urgent;
  const compared = reached
    ? `From ${urgent} on, an image goes first.`
    : `An image goes first from ${urgent} on. Being below rules out no disease.`;
  const sentence = [
    `For ${group} together. ${compared}`,
    reached && !target.classes.includes(prediction.label)
      ? `The class that it resembles most is ${names(prediction.label)}; the threshold is low, so ` +
        "that few are missed."
      : null,
    policy.notice ?? measuredSentence(policy.measured[0]),
  ];
  return { word: share, sentence: sentence.filter(Boolean).join(" ") };
}

/* What the threshold did in the first test, which resembles the training images most. */
function measuredSentence(measured) {
  if (measured === undefined) return null;
  return (
    `In tests, ${percent(measured.sensitivity)} of the lesions with ${measured.critical} went ` +
    `first or were unfamiliar, and so did ${percent(1 - measured.specificity)} of the harmless ones ` +
    `(${measured.data}).`
  );
}

/** How sure the model is.
 * @returns {Statement} */
export function sureness({ prediction, reasons }, names) {
  const votes = votesOf(prediction);
  const [first, second] = ranking(prediction);
  const codes = reasons.map(({ code }) => code);
  if (prediction.unfamiliar) {
    const sentence = "Passes can agree on an image unlike those that the model learned from.";
    return { word: "Does not count", sentence };
  }
  if (votes.size > 1) return { word: "The passes disagree", sentence: disagreement(prediction, names) };
  if (codes.includes("high_entropy") || prediction.msp < MAJORITY) {
    const sentence =
      `No class stands out: ${names(first)} ${percent(prediction.probabilities[first])}, ` +
      `${names(second)} ${percent(prediction.probabilities[second])}.`;
    return { word: "Unsure", sentence };
  }
  const agreed = `All ${passes(prediction)} put ${names(first)} first`;
  const sentence = `${agreed}, with ${percent(prediction.msp)} on average. They can be wrong together.`;
  return { word: "Sure", sentence };
}

/** How familiar the image is to the model.
 * @returns {Statement} */
export function familiarity({ unfamiliar, ood }) {
  if (unfamiliar) {
    return {
      word: "Unlike the images it learned from",
      sentence: "Another camera, another condition, or something else. Its percentages say nothing.",
    };
  }
  if (ood) {
    return {
      word: "Perhaps unlike the images it learned from",
      sentence: "No class stands out, as with images of something else.",
    };
  }
  if ((unfamiliar ?? null) === null && ood === null) {
    return { word: "Unknown", sentence: "The model has no threshold for this number of passes." };
  }
  return {
    word: "Familiar",
    sentence: "Not flagged as unlike the images that it learned from. Some unlike images are not flagged.",
  };
}

/** The group of a prediction without a disposition, in the list. */
export function groupOf(prediction) {
  if (prediction.unfamiliar || prediction.ood) return UNFAMILIAR;
  return votesOf(prediction).size > 1 || prediction.msp < MAJORITY ? UNSURE : SURE;
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

function disagreement(prediction, names) {
  const votes = [...votesOf(prediction)].sort((one, other) => other[1] - one[1]);
  const parts = votes.map(([name, number]) => `${number} put ${names(name)} first`);
  return `Of ${passes(prediction)}, ${parts.join(", ")}.`;
}

function ranking({ probabilities }) {
  return Object.keys(probabilities).sort((one, other) => probabilities[other] - probabilities[one]);
}

/** A function from a class code to its description, without the parts in brackets.
 * @param {{name: string, description: string}[]} classes */
export function namesOf(classes) {
  const byCode = new Map(classes.map(({ name, description }) => [name, shortened(description)]));
  return (code) => byCode.get(code) ?? code;
}
