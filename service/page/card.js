/* The card of one image: progress, a problem, or a result with the words first. */

import { classChart } from "./charts.js";
import { button, html, part } from "./dom.js";
import { figures } from "./figures.js";
import { icon } from "./icons.js";
import { advice, sentence } from "./problems.js";
import { capitalised, passes } from "./text.js";
import { decision, familiarity, reasonsOf, sureness } from "./words.js";

const SHIFT = "distribution_shift";

/** The content of a card while there is no result. */
export function pendingContent(item) {
  return html("div", { class: "verdict" }, html("p", { class: "progress" }, item.progress));
}

/** The content of a card with a problem. `retry` repeats the request. */
export function problemContent(item, retry) {
  const { problem } = item;
  return html(
    "div",
    { class: "verdict" },
    html("p", { class: "verdict-title" }, icon("problem"), sentence(problem.title)),
    html("p", { class: "pathway" }, sentence(problem.detail)),
    html("p", { class: "note" }, advice(problem)),
    button("Retry", retry, { class: "primary", "aria-label": `Retry ${item.name}` }),
  );
}

/** The content of a card with a result. names: from a class code to its description. */
export function resultContent(result, names) {
  const rows = classRows(result, names);
  return [
    result.disposition === null ? null : verdict(result),
    statements(result, names),
    warnings(result.prediction.warnings),
    probabilities(result, rows),
    figures(result, rows),
  ].filter((content) => content !== null);
}

function verdict(result) {
  const reasons = reasonsOf(result).counting.map(({ words }) => html("li", {}, words));
  return html(
    "div",
    { class: "verdict" },
    html("p", { class: "verdict-title" }, icon(result.disposition), result.title),
    reasons.length > 0
      ? [html("p", { class: "why" }, "Why"), html("ul", { class: "reasons" }, reasons)]
      : null,
    html("p", { class: "pathway" }, result.pathway),
  );
}

function statements(result, names) {
  const entries = [
    [capitalised(result.target?.name ?? ""), decision(result, names)],
    ["How sure is the model?", sureness(result, names)],
    ["How familiar is the image?", familiarity(result.prediction)],
  ].filter(([, statement]) => statement !== null);
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
  const shown = entries.filter(({ code }) => code !== SHIFT);
  if (shown.length === 0) return null;
  const lines = shown.map(({ message }) => html("li", {}, sentence(message)));
  return part("Notes", html("ul", { class: "reasons" }, lines));
}

/* Collapsed for an unfamiliar image, whose probabilities say nothing. */
function probabilities({ prediction, target }, rows) {
  const legend = html(
    "p",
    { class: "note legend" },
    html("span", { class: "swatch bar", "aria-hidden": "true" }),
    `mean of ${passes(prediction)} `,
    html("span", { class: "swatch point", "aria-hidden": "true" }),
    "one pass; a wide spread means that the passes disagree",
  );
  const chart = [classChart(rows, target?.name), legend];
  if (!prediction.unfamiliar) return part("Class probabilities", chart);
  return html(
    "details",
    { class: "figures" },
    html("summary", {}, "Show the probabilities, which say nothing about an unfamiliar image"),
    chart,
  );
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
