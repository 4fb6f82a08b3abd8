/* Pictures of an answer. Each has a table or a sentence beside it that says the same. */

import { html, svg } from "./dom.js";
import { decimal, percent } from "./words.js";

const GOLDEN = 0.618; // spreads points over the height of their row, the same way every time

/** One row a class: its mean as a bar, every pass as a point. classes: [{name, words, share,
 * points, marked}], in the order in which they are shown; marked ones carry `mark`. */
export function classChart(classes, mark) {
  const rows = classes.map((each, index) =>
    html(
      "li",
      { class: index === 0 ? "class-row first" : "class-row" },
      html(
        "span",
        { class: "class-name" },
        each.words,
        " ",
        html("span", { class: "class-code" }, each.name),
        " ",
        each.marked ? html("span", { class: "class-mark" }, mark) : null,
      ),
      track(each),
      html("span", { class: "class-share" }, percent(each.share)),
    ),
  );
  return html("ol", { class: "class-chart" }, rows, axis());
}

function axis() {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) =>
    svg("text", { x: at(share), y: "80%" }, `${100 * share} %`),
  );
  const drawn = svg("svg", { class: "axis", focusable: "false" }, ticks);
  return html("li", { class: "class-row", "aria-hidden": "true" }, html("span"), drawn);
}

function track({ share, points }) {
  return svg(
    "svg",
    { class: "track", "aria-hidden": "true", focusable: "false" },
    [0, 0.25, 0.5, 0.75, 1].map((at) => line(at, "grid")),
    svg("rect", { class: "bar", x: 0, y: "36%", height: "28%", width: at(share), rx: 2 }),
    points.map((each, index) =>
      svg("circle", {
        class: "point",
        cx: at(each),
        cy: `${22 + 56 * ((GOLDEN * (index + 0.5)) % 1)}%`,
        r: points.length > 32 ? 2.25 : 3.25,
      }),
    ),
    line(share, "mean", "24%", "76%"),
  );
}

/** The two parts of the entropy on a scale up to its largest value; all in nats. */
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

/** A share of 1 against a threshold. flagged: which side of it calls for attention. */
export function thresholdChart({ share, threshold, flagged }) {
  const known = threshold !== null;
  const zone = flagged === "below"
    ? { x: 0, width: at(threshold) }
    : { x: at(threshold), width: at(1 - threshold) };
  return svg(
    "svg",
    { class: "scale", "aria-hidden": "true", focusable: "false" },
    svg("rect", { class: "trough", x: 0, y: 0, width: "100%", height: "100%", rx: 3 }),
    known ? svg("rect", { class: "flag-zone", y: 0, height: "100%", rx: 3, ...zone }) : null,
    known ? line(threshold, "threshold") : null,
    svg("circle", { class: "marker", cx: at(share), cy: "50%", r: 6 }),
  );
}

/** The class chart's numbers, for whoever reads rather than sees them. */
export function classTable(classes) {
  const head = ["Class", "Mean", "Lowest pass", "Highest pass"].map((words) =>
    html("th", { scope: "col" }, words),
  );
  const rows = classes.map(({ words, share, points }) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, words),
      [share, Math.min(...points), Math.max(...points)].map((each) =>
        html("td", {}, percent(each)),
      ),
    ),
  );
  return html(
    "table",
    {},
    html("caption", {}, "Probability of each class: the mean over all passes, and their range"),
    html("thead", {}, html("tr", {}, head)),
    html("tbody", {}, rows),
  );
}

/** A key to a colour and pattern of a chart, with a number and what it means. */
export function keyed(kind, name, value, meaning) {
  return html(
    "li",
    {},
    html("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
    html("strong", {}, `${name} ${decimal(value)}`),
    ` ${meaning}`,
  );
}

function at(share) {
  return `${(100 * Math.min(1, Math.max(0, share))).toFixed(3)}%`;
}

function line(share, kind, y1 = "0%", y2 = "100%") {
  return svg("line", { class: kind, x1: at(share), x2: at(share), y1, y2 });
}
