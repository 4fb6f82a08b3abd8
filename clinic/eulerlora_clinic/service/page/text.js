/* Numbers and names formatted for people. */

import { fixed, plural, t } from "./language.js";

/** A probability in percent. digits: after the point; by default one below 10 %. */
export function percent(fraction, digits = fraction < 0.0995 ? 1 : 0) {
  if (fraction > 0 && fraction < 0.001 && digits < 2) return t("<{number}\u00a0%", { number: fixed(0.1, 1) });
  return t("{number}\u00a0%", { number: fixed(100 * fraction, digits) });
}

/** Two probabilities in percent, with as many digits as are needed to tell them apart. */
export function percents(one, other) {
  if (one === other) return [percent(one), percent(other)];
  for (let digits = 1; ; digits += 1) {
    const texts = [percent(one), percent(other)];
    if (texts[0] !== texts[1]) return texts;
    const precise = [percent(one, digits + 1), percent(other, digits + 1)];
    if (precise[0] !== precise[1] || digits === 6) return precise;
  }
}

/** A number with two decimals. */
export function decimal(value) {
  return fixed(value, 2);
}

/** A number with three decimals, for comparison with a threshold. */
export function exact(value) {
  return fixed(value, 3);
}

/** "1 image", "2 images". */
export function images(number) {
  return plural(number, "{n} image", "{n} images");
}

/** The number of what a measurement counts: "1 lesion", "2 groups". */
export function cases(number, unit) {
  return {
    lesion: () => plural(number, "{n} lesion", "{n} lesions"),
    group: () => plural(number, "{n} group", "{n} groups"),
    picture: () => images(number),
  }[unit]();
}

/** The text with a capital first letter. */
export function capitalised(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A class description without its parts in brackets, short enough for a chart. */
export function shortened(description) {
  return description.replace(/\s*\([^)]*\)/g, "").trim() || description;
}

/** The name of a data set without that of its split. */
export function dataName(text) {
  return text.replace(/, [\w-]+ split\b/g, "").split(", ").map((part) => t(part)).join(", ")
    .replace(/training was shown ([\d,]+) of its images/, (_, n) => t("training was shown {n} of its images", { n }))
    .replace(/fits used ([\d,]+) of its images/, (_, n) => t("fits used {n} of its images", { n }));
}

/** The number and kind of passes: "8 sampled passes". */
export function passes(prediction) {
  const number = prediction.trajectories;
  return prediction.mode === "stoch"
    ? plural(number, "{n} sampled pass", "{n} sampled passes")
    : plural(number, "{n} fixed pass", "{n} fixed passes");
}
