/* Numbers and names formatted for people. */

/** A probability in percent. */
export function percent(fraction) {
  if (fraction > 0 && fraction < 0.001) return "<0.1 %";
  const digits = fraction < 0.0995 ? 1 : 0;
  return `${(100 * fraction).toFixed(digits)} %`;
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

/** A class description without its parts in brackets, short enough for a chart. */
export function shortened(description) {
  return description.replace(/\s*\([^)]*\)/g, "").trim() || description;
}

/** The number and kind of passes: "8 sampled passes". */
export function passes(prediction) {
  const kind = prediction.mode === "stoch" ? "sampled" : "fixed";
  return count(prediction.trajectories, `${kind} pass`, `${kind} passes`);
}

/** How many passes of a prediction rank its label first, as a sentence. */
export function agreement(prediction, nameOf) {
  const rows = prediction.trajectory_probabilities;
  const classes = Object.keys(prediction.probabilities);
  const votes = new Map();
  for (const row of rows) {
    const first = classes[row.indexOf(Math.max(...row))];
    votes.set(first, (votes.get(first) ?? 0) + 1);
  }
  const votesForLabel = votes.get(prediction.label) ?? 0;
  const others = [...votes.keys()].filter((name) => name !== prediction.label);
  if (others.length === 0) {
    return `All ${passes(prediction)} rank ${nameOf(prediction.label)} first.`;
  }
  return (
    `The passes disagree: ${votesForLabel} of ${passes(prediction)} rank ` +
    `${nameOf(prediction.label)} first, ` +
    `others rank ${others.map(nameOf).join(" or ")} first.`
  );
}
