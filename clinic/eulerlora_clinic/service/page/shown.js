/* What a person sees of a result. */

/** The reasons for a bad image. */
export const QUALITY_FAULTS = ["too_small", "too_dark", "too_bright", "blurred"];
const WITHOUT_FIGURES = ["unfamiliar", "far", "target_classes", ...QUALITY_FAULTS];

/** What a person sees of a result: of an unfamiliar image no label, probability or entropy, and of
 * the reasons that rest on them only the one that makes it urgent, unless it is far. figures: the
 * prediction. `figures` and `target` are null if they are not shown; `target` also without a policy. */
export function shown({ reasons, prediction, target }) {
  if (!prediction.unfamiliar) return { reasons, figures: prediction, target };
  const isFar = reasons.some(({ code }) => code === "far");
  const kept = reasons.filter(({ code }) =>
    WITHOUT_FIGURES.includes(code) && !(isFar && code === "target_classes"));
  return { reasons: kept, figures: null, target: null };
}
