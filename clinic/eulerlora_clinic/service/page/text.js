/* Numbers and names formatted for people. */

const NBSP = "\u00a0";

/** A probability in percent. digits: after the point; by default one below 10 %. */
export function percent(fraction, digits = fraction < 0.0995 ? 1 : 0) {
  if (fraction > 0 && fraction < 0.001 && digits < 2) return `<0.1${NBSP}%`;
  return `${(100 * fraction).toFixed(digits)}${NBSP}%`;
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
  return value.toFixed(2);
}

/** A number with three decimals, for comparison with a threshold. */
export function exact(value) {
  return value.toFixed(3);
}

/** "1 image", "2 images". */
export function count(number, noun, plural = `${noun}s`) {
  return `${number} ${number === 1 ? noun : plural}`;
}

/** The text with a capital first letter. */
export function capitalised(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** "a, b or c". */
export function either(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} or ${names.at(-1)}`;
}

/** A class description without its parts in brackets, short enough for a chart. */
export function shortened(description) {
  return description.replace(/\s*\([^)]*\)/g, "").trim() || description;
}

/** The name of a data set without that of its split. */
export function dataName(text) {
  return text.replace(/, [\w-]+ split\b/g, "");
}

/** The number and kind of passes: "8 sampled passes". */
export function passes(prediction) {
  const kind = prediction.mode === "stoch" ? "sampled" : "fixed";
  return count(prediction.trajectories, `${kind} pass`, `${kind} passes`);
}
