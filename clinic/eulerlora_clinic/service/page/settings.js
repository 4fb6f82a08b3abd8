/* The settings of a request, and what is known about each of them. */

import { plural, t } from "./language.js";

const AUTO = "auto";
const DEFAULT = { mode: "stoch", samples: 4 };

/** A number of passes. fitted: the policy's thresholds were set for it. flag: it has a threshold for
 * images unlike the training images.
 * @typedef {{mode: string, samples: number | string | null, fitted: boolean, flag: boolean}} Setting */

/** True if the policy decides on images of the model: it has all target classes. */
export function policyApplies(model, policy) {
  const classes = new Set(model.classes.map(({ name }) => name));
  return policy !== null && policy.policy.target.classes.every((name) => classes.has(name));
}

/** All settings of a model; first the recommended one, that of the policy or of the service unless
 * another one has more thresholds. policy: null if it does not apply.
 * @returns {Setting[]} */
export function settingsOf(model, policy) {
  const settings = [{ mode: "det", samples: null }];
  for (let samples = 1; samples <= model.max_samples; samples *= 2) {
    settings.push({ mode: "stoch", samples });
  }
  // needs decision margins, which a model has with the threshold of its answers
  if (model.thresholds.some(({ options }) => options.samples === AUTO)) {
    settings.push({ mode: "stoch", samples: AUTO });
  }
  const described = settings.map((setting) => ({
    ...setting,
    fitted: policy !== null && isFitted(setting, model, policy.policy.evidence),
    flag: model.thresholds.some(({ options }) => isSame(setting, options)),
  }));
  const preferred = [policy ?? DEFAULT, DEFAULT].map((one) =>
    described.find((setting) => isSame(setting, one)));
  const best = Math.max(...described.map(thresholds));
  const recommended = [...preferred, ...described].find((setting) => thresholds(setting) === best);
  return [recommended, ...described.filter((setting) => setting !== recommended)];
}

/* How much is known about a setting; the thresholds of the policy count more. */
function thresholds({ fitted, flag }) {
  return 2 * fitted + flag;
}

/** True if the setting lacks a threshold that the recommended one has. */
export function isLocked(setting, recommended) {
  return (recommended.fitted && !setting.fitted) || (recommended.flag && !setting.flag);
}

/** A setting for people: "sampled, 8 passes; recommended". */
export function labelOf(setting, model, recommended) {
  const { mode, samples } = setting;
  const sampled = samples === AUTO
    ? t("sampled, as many passes as each answer needs")
    : plural(samples * model.adapters, "sampled, {n} pass", "sampled, {n} passes");
  const lacks = [
    recommended.fitted && !setting.fitted ? t("no thresholds of the policy") : null,
    recommended.flag && !setting.flag ? t("no flag for unfamiliar images") : null,
  ].filter(Boolean);
  const notes = setting === recommended ? [t("recommended")] : lacks;
  const passes = mode === "det" ? plural(model.adapters, "fixed, {n} pass", "fixed, {n} passes") : sampled;
  return [passes, ...notes].join("; ");
}

/** What is unknown with a locked setting, in words. policy: of GET /triage/policy. */
export function consequence(recommended, { policy: { target } }) {
  return [
    recommended.fitted
      ? t("Without thresholds of the policy it is unknown how many images of {critical} are called " +
        "routine, and how many urgent ones are not {target}.",
      { critical: t(target.critical.name), target: t(target.name) })
      : null,
    recommended.flag
      ? t("Without a flag, no image is called unfamiliar, whatever it shows.")
      : null,
  ].filter(Boolean).join(" ");
}

/** The query parameters of a setting. */
export function parameters({ mode, samples }, model) {
  return mode === "stoch" ? { mode, model, samples: String(samples) } : { mode, model };
}

function isFitted(setting, model, evidence) {
  return evidence.some(({ revision, options }) => revision === model.revision &&
    options.precision === model.precision && isSame(setting, options));
}

/** Whether a setting and options agree. Samples matter in mode stoch; mode det has null in settings,
 * and a value in options. */
export function isSame(one, other) {
  return one.mode === other.mode && (one.mode === "det" || one.samples === other.samples);
}
