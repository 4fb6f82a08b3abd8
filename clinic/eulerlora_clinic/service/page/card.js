/* The card of one image: progress, a problem, or a result with the words first. */

import { classChart } from "./charts.js";
import { button, html, part } from "./dom.js";
import { figures } from "./figures.js";
import { icon } from "./icons.js";
import { t, warningText } from "./language.js";
import { advice, sentence } from "./problems.js";
import { shown } from "./shown.js";
import { capitalised, passes } from "./text.js";
import { agreement, decision, familiarity, resemblance } from "./words.js";

const SHIFT = "distribution_shift";

/** The content of a card while there is no result. */
export function pendingContent(item) {
  return html("div", { class: "verdict" }, html("p", { class: "progress" }, item.progress));
}

/** The content of a card with a problem. `retry` repeats the request; it is not offered for a file
 * that was refused. */
export function problemContent(item, retry) {
  const { problem } = item;
  return html(
    "div",
    { class: "verdict" },
    html("p", { class: "verdict-title" }, icon("problem"), sentence(problem.title)),
    html("p", { class: "pathway" }, sentence(problem.detail)),
    html("p", { class: "note" }, advice(problem)),
    problem.isTemporary
      ? button(t("Retry"), retry, { class: "primary", "aria-label": t("Retry {name}", item) })
      : null,
  );
}

/** The content of the card of an item with a result. names: from a class code to its
 * description. */
export function resultContent({ result, preview }, names) {
  const isShown = shown(result).figures !== null;
  const rows = isShown ? classRows(result, names) : [];
  return [
    result.disposition === null ? null : verdict(result),
    statements(result, names),
    warnings(result.prediction.warnings),
    isShown ? probabilities(result, rows) : null,
    figures(result, rows, preview, names),
  ].filter((content) => content !== null);
}

function verdict(result) {
  const reasons = shown(result).reasons.map(({ words }) => html("li", {}, t(words)));
  return html(
    "div",
    { class: "verdict" },
    html("p", { class: "verdict-title" }, icon(result.disposition), t(result.title)),
    reasons.length > 0
      ? [html("p", { class: "why" }, t("Why")), html("ul", { class: "reasons" }, reasons)]
      : null,
    html("p", { class: "pathway" }, t(result.pathway)),
  );
}

function statements(result, names) {
  const statementsOfFigures = shown(result).figures === null
    ? []
    : [
      [t("Looks like"), resemblance(result, names)],
      [result.target && capitalised(t(result.target.name)), decision(result, names)],
      [t("Do the passes agree?"), agreement(result, names)],
    ];
  const entries = [...statementsOfFigures, [t("How familiar is the image?"), familiarity(result.prediction)]]
    .filter(([, statement]) => statement !== null);
  return html(
    "dl",
    { class: "statements" },
    entries.map(([title, { word, sentence: explanation }]) =>
      html(
        "div",
        {},
        html("dt", {}, title),
        html("dd", {}, html("strong", {}, word), html("span", {}, explanation)),
      ),
    ),
  );
}

/* The shift of the images is a notice of the page. */
function warnings(entries) {
  const others = entries.filter(({ code }) => code !== SHIFT);
  if (others.length === 0) return null;
  const lines = others.map((warning) => html("li", {}, sentence(warningText(warning))));
  return part(t("Notes"), html("ul", { class: "reasons" }, lines));
}

function probabilities({ prediction, target }, rows) {
  const legend = html(
    "p",
    { class: "note legend" },
    html("span", { class: "swatch bar", "aria-hidden": "true" }),
    t("mean of {passes}", { passes: passes(prediction) }), " ",
    html("span", { class: "swatch point", "aria-hidden": "true" }),
    t("one pass; a wide spread means that the passes disagree"),
  );
  return part(t("Class probabilities"), [classChart(rows, target && t(target.name)), legend]);
}

function classRows({ prediction, target }, names) {
  const marked = target?.classes ?? [];
  return Object.keys(prediction.probabilities)
    .map((name, index) => ({
      label: names(name),
      probability: prediction.probabilities[name],
      points: prediction.trajectory_probabilities.map((row) => row[index]),
      marked: marked.includes(name),
    }))
    .sort((one, other) => other.probability - one.probability);
}
