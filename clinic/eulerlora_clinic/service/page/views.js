/* The two views of an image, flips and turns of it, that the model answers most differently. */

import { html, part } from "./dom.js";
import { t } from "./language.js";
import { show } from "./preview.js";
import { percent } from "./text.js";

const NAMES = [
  t("as it is"), t("flipped left to right"), t("flipped top to bottom"), t("turned by 180°"),
  t("flipped along a diagonal"), t("turned to the right"), t("turned to the left"),
  t("flipped along the other diagonal"),
];

/** The class whose probability differs most between views, and the views with the highest and the
 * lowest one; null if all passes see the image itself.
 * @returns {{name: string, views: {view: number, probability: number}[]} | null} */
function differingViews({ probabilities, trajectory_views: seen, trajectory_probabilities: rows }) {
  if (!seen) return null;
  const byClass = Object.keys(probabilities).map((name, index) => {
    const means = [...new Set(seen)].map((view) => {
      const own = rows.filter((_, row) => seen[row] === view).map((row) => row[index]);
      return { view, probability: own.reduce((sum, value) => sum + value, 0) / own.length };
    });
    means.sort((one, other) => other.probability - one.probability);
    return { name, views: [means[0], means.at(-1)] };
  });
  const range = ({ views: [highest, lowest] }) => highest.probability - lowest.probability;
  return byClass.reduce((most, one) => (range(one) > range(most) ? one : most));
}

/** A part of the figures with the differing views; null without views.
 * @param {Promise<Blob | null>} preview  of the image
 * @param {Function} names  from a class code to its description */
export function viewsPart(prediction, preview, names) {
  const differing = differingViews(prediction);
  if (differing === null) return null;
  const pictures = differing.views.map(({ view, probability }) =>
    html(
      "figure",
      { class: "view" },
      picture(view, preview),
      html("figcaption", {}, html("strong", {}, percent(probability)), ` ${NAMES[view]}`),
    ),
  );
  return part(
    t("Do the views agree?"),
    html(
      "p",
      { class: "note" },
      t("The passes look at flips and turns of the image, which all show the same. They differ most in " +
        "the probability of {name}, between these two:", { name: names(differing.name) }),
    ),
    html("div", { class: "views" }, pictures),
  );
}

/* As the model sees it: a square, then the axes exchanged, then flipped. */
function picture(view, preview) {
  const image = html("img", { alt: "" }); // the caption describes it
  const axes = view & 4 ? "matrix(0, 1, 1, 0, 0, 0)" : "";
  image.style.transform = `scale(${view & 1 ? -1 : 1}, ${view & 2 ? -1 : 1}) ${axes}`;
  preview.then((small) => (small === null ? image.remove() : show(image, small)));
  return image;
}
