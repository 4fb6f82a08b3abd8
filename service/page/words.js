/* Numbers and names as a person reads them. */

/** A probability in percent. */
export function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1 %";
  const digits = share < 0.0995 ? 1 : 0;
  return `${(100 * share).toFixed(digits)} %`;
}

/** A number with two decimals. */
export function decimal(value) {
  return value.toFixed(2);
}

/** A number that is compared with another one nearby. */
export function exact(value) {
  return value.toFixed(3);
}

/** "1 picture", "2 pictures". */
export function counted(count, noun, plural = `${noun}s`) {
  return `${count} ${count === 1 ? noun : plural}`;
}

/** A class description without what stands in brackets, which charts have no room for. */
export function shortened(description) {
  return description.replace(/\s*\([^)]*\)/g, "").trim() || description;
}

/** How a prediction came about: "8 sampled passes". */
export function passes(prediction) {
  const kind = prediction.mode === "stoch" ? "sampled" : "fixed";
  return counted(prediction.trajectories, `${kind} pass`, `${kind} passes`);
}

/** How many of a prediction's passes put its label first, in words. */
export function agreement(prediction, nameOf) {
  const rows = prediction.trajectory_probabilities;
  const classes = Object.keys(prediction.probabilities);
  const votes = new Map();
  for (const row of rows) {
    const first = classes[row.indexOf(Math.max(...row))];
    votes.set(first, (votes.get(first) ?? 0) + 1);
  }
  const most = votes.get(prediction.label) ?? 0;
  const others = [...votes.keys()].filter((name) => name !== prediction.label);
  if (others.length === 0) {
    return `All ${passes(prediction)} put ${nameOf(prediction.label)} first.`;
  }
  return (
    `The passes disagree: ${most} of ${passes(prediction)} put ${nameOf(prediction.label)} first, ` +
    `others put ${others.map(nameOf).join(" or ")} first.`
  );
}
