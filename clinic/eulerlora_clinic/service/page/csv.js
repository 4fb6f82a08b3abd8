/* The items as CSV, with the columns of the command line's and, after the name, identifier, note, and
 * what a person decided. */

import { shown } from "./shown.js";

const BYTE_ORDER_MARK = "\ufeff"; // without it, spreadsheets do not read UTF-8
const FORMULA = /^[=+\-@\t\r\n]/; // a spreadsheet reads such a text as a formula
const BY_URGENCY = ["routine", "failed", "retake", "refer", "unfamiliar", "urgent"];
const PREDICTION = [
  "msp", "entropy", "expected_entropy", "mutual_information", "ood", "ood_threshold", "unfamiliar",
  "mode", "samples", "sampler", "views", "precision", "runtime", "rows", "trajectories", "seed", "model",
  "revision", "request_id",
];
const FIGURES = ["msp", "entropy", "expected_entropy", "mutual_information"]; // not of unfamiliar images
const DEFAULTS = { sampler: "independent", views: 1, precision: "float32", runtime: "torch" }; // left out of answers
const QUALITY = ["width", "height", "brightness", "dark_share", "bright_share", "sharpness"];

/** The CSV (RFC 4180) of items, in their order. problemOf: the problem of an item, or null.
 * @param {Item[]} items
 * @returns {string} */
export function csv(items, problemOf) {
  const results = items.map((item) => (problemOf(item) === null ? item.result : null));
  const classes = new Set(
    results.flatMap((result) => Object.keys(result?.prediction.probabilities ?? {})),
  );
  const rows = items.map((item, index) => ({
    ...named(item),
    ...decisionCells(results[index] && item.decided),
    ...lesionCells(item, items, results),
    ...resultCells(results[index], problemOf(item)),
    ...probabilityCells(results[index], classes),
  }));
  const lines = [Object.keys(rows[0]), ...rows.map(Object.values)];
  return BYTE_ORDER_MARK + lines.map((cells) => `${cells.map(cellOf).join(",")}\r\n`).join("");
}

function named({ name, identifier, note }) {
  const file = FORMULA.test(name) ? `./${name}` : name; // names the same file
  return { file, identifier, note };
}

function decisionCells(decided) {
  return { decision: decided?.decision, reason: decided?.reason };
}

function lesionCells({ lesion }, items, results) {
  const name = lesion.trim();
  if (name === "") return { lesion: null, lesion_disposition: null };
  const ranks = items.map((one, index) => [one, results[index]?.disposition ?? "failed"])
    .filter(([one]) => one.lesion.trim() === name)
    .map(([, status]) => BY_URGENCY.indexOf(status));
  const mostUrgent = BY_URGENCY[Math.max(...ranks)];
  return { lesion: name, lesion_disposition: mostUrgent === "failed" ? null : mostUrgent };
}

/* All cells but those of file, lesion and classes; without a result, only the problem's are full. */
function resultCells(result, problem) {
  const { prediction, policy, target, quality } = result ?? {};
  const { reasons, figures, target: shownTarget } = result === null ? {} : shown(result);
  const name = (code) => (result.class_names?.[code] ?? code).split(" (")[0];
  const texts = [problem?.title, problem?.detail].filter(Boolean);
  return {
    disposition: result?.disposition,
    reasons: joined(reasons?.map(({ code }) => code)),
    problem: problem?.code,
    problem_detail: problem && (texts.join(": ") || problem.code),
    target_probability: shownTarget?.probability,
    routine_threshold: target?.routine,
    urgent_threshold: target?.urgent,
    target_classes: joined(target?.classes.map(name)),
    label: figures?.label,
    label_name: figures && name(figures.label),
    ...predictionCells(prediction, figures),
    prediction_set: joined(figures?.prediction_set?.labels),
    prediction_set_coverage: figures?.prediction_set?.coverage,
    warnings: joined(prediction?.warnings.map(({ message }) => message)),
    ...Object.fromEntries(QUALITY.map((key) => [`quality_${key}`, quality?.[key]])),
    ...policyCells(policy),
    class_names: joined(
      result?.class_names && Object.entries(result.class_names).map((pair) => pair.join(": ")),
    ),
  };
}

function predictionCells(prediction, figures) {
  const values = prediction && { ...DEFAULTS, ...prediction };
  const scores = ["energy", "feature_distance"].flatMap((name) => {
    const score = prediction?.ood_scores?.[name];
    return [[name, score?.value], [`${name}_threshold`, score?.threshold]];
  });
  const shownOf = (name) => (FIGURES.includes(name) ? figures?.[name] : values?.[name]);
  return Object.fromEntries([...PREDICTION.map((name) => [name, shownOf(name)]), ...scores]);
}

function policyCells(policy) {
  const measured = policy?.measured;
  const numbers = (key) => measured?.map((one) => (one[key] === null ? "none" : general(one[key])));
  return {
    policy_version: policy?.version,
    policy_hash: policy?.hash,
    policy_established: policy?.established,
    policy_notice: policy?.notice,
    policy_measured_on: joined(measured?.map(({ data, unit }) => `${data} (${unit}s)`)),
    policy_critical: joined(measured && [...new Set(measured.map(({ critical }) => critical))]),
    policy_sensitivity: joined(numbers("sensitivity")),
    policy_specificity: joined(numbers("specificity")),
    policy_predictive_value: joined(numbers("predictive_value")),
  };
}

function probabilityCells(result, classes) {
  const figures = result && shown(result).figures;
  return Object.fromEntries(
    [...classes].map((name) => [`p_${name}`, figures?.probabilities[name]]),
  );
}

function joined(texts) {
  return texts?.join("; ");
}

/* A number with six significant digits at most. */
function general(value) {
  return String(Number(value.toPrecision(6)));
}

function cellOf(value) {
  if (typeof value === "boolean") return value ? "True" : "False"; // as the command line
  if (typeof value !== "string") return String(value ?? "");
  const text = printable(FORMULA.test(value) ? `'${value}` : value);
  return /[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/* Control characters, and marks that reverse a text, as escapes. */
function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (one) =>
    `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
}
