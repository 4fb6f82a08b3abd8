/* Charts of a result. A table or sentence beside every chart gives the same information. */

import { html, svg } from "./dom.js";
import { t } from "./language.js";
import { decimal, percent } from "./text.js";

const GOLDEN = 0.618; // spreads points evenly and reproducibly over the height of a row

/** One row per class: the mean as a bar, every pass as a point. classes: [{name, label,
 * probability, points, marked}] in display order; marked classes show the text `mark`. */
export function classChart(classes, mark) {
  const rows = classes.map((row, index) =>
    html(
      "li",
      { class: index === 0 ? "class-row first" : "class-row" },
      html(
        "span",
        { class: "class-name" },
        row.label,
        " ",
        row.marked ? html("span", { class: "class-mark" }, mark) : null,
      ),
      track(row),
      html("span", { class: "class-share" }, percent(row.probability)),
    ),
  );
  return html("ol", { class: "class-chart" }, rows, axis());
}

function axis() {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((fraction) =>
    svg("text", { x: at(fraction), y: "80%" }, percent(fraction, 0)),
  );
  const drawn = svg("svg", { class: "axis", focusable: "false" }, ticks);
  return html("li", { class: "class-row", "aria-hidden": "true" }, html("span"), drawn);
}

function track({ probability, points }) {
  return svg(
    "svg",
    { class: "track", "aria-hidden": "true", focusable: "false" },
    [0, 0.25, 0.5, 0.75, 1].map((fraction) => line(fraction, "grid")),
    svg("rect", { class: "bar", x: 0, y: "36%", height: "28%", width: at(probability), rx: 2 }),
    points.map((point, index) =>
      svg("circle", {
        class: "point",
        cx: at(point),
        cy: `${22 + 56 * ((GOLDEN * (index + 0.5)) % 1)}%`,
        r: points.length > 32 ? 2.25 : 3.25,
      }),
    ),
    line(probability, "mean", "24%", "76%"),
  );
}

/** The two parts of the entropy (nats) on a scale up to its maximum. */
export function entropyChart({ expected, mutual, largest }) {
  return svg(
    "svg",
    { class: "scale", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "trough", x: 0, y: 0, width: "100%", height: "100%", rx: 3 }),
    svg("rect", {
      class: "expected", x: 0, y: 0, width: at(expected / largest), height: "100%", rx: 3,
    }),
    svg("rect", {
      class: "mutual",
      x: at(expected / largest),
      y: 0,
      width: at(mutual / largest),
      height: "100%",
      rx: 1,
    }),
  );
}

/** A probability and a threshold. flagged: "below" or "above", the flagged side. */
export function thresholdChart({ probability, threshold, flagged }) {
  const hasThreshold = threshold !== null;
  const zone = flagged === "below"
    ? { x: 0, width: at(threshold) }
    : { x: at(threshold), width: at(1 - threshold) };
  return svg(
    "svg",
    { class: "scale", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "trough", x: 0, y: 0, width: "100%", height: "100%", rx: 3 }),
    hasThreshold ? svg("rect", { class: "flag-zone", y: 0, height: "100%", rx: 3, ...zone }) : null,
    hasThreshold ? line(threshold, "threshold") : null,
    svg("circle", { class: "marker", cx: at(probability), cy: "50%", r: 6 }),
  );
}

/** The numbers of the class chart as a table. */
export function classTable(classes) {
  const head = [t("Class"), t("Mean"), t("Lowest pass"), t("Highest pass")].map((title) =>
    html("th", { scope: "col" }, title),
  );
  const rows = classes.map(({ label, probability, points }) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, label),
      [probability, Math.min(...points), Math.max(...points)].map((value) =>
        html("td", {}, percent(value)),
      ),
    ),
  );
  const caption = t("Mean over all passes, and range");
  const table = html(
    "table",
    {},
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, head)),
    html("tbody", {}, rows),
  );
  return html("div", { class: "frame", tabindex: 0, role: "group", "aria-label": caption }, table);
}

/** A legend entry: colour and pattern, value, and meaning. */
export function legend(kind, name, value, meaning) {
  return html(
    "li",
    {},
    html("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
    html("strong", {}, `${name} ${decimal(value)}`),
    ` ${meaning}`,
  );
}

function at(fraction) {
  return `${(100 * Math.min(1, Math.max(0, fraction))).toFixed(3)}%`;
}

function line(fraction, kind, y1 = "0%", y2 = "100%") {
  return svg("line", { class: kind, x1: at(fraction), x2: at(fraction), y1, y2 });
}
