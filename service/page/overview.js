/* The overview of all cards: their number by state, and links in order of urgency. */

import { byId, html } from "./dom.js";
import { icon } from "./icons.js";
import { count } from "./text.js";

const BY_URGENCY = [
  "routine", "problem", "prediction", "retake", "refer", "unfamiliar", "urgent",
];
const LABELS = [
  ["urgent", "to prioritise"],
  ["unfamiliar", "unfamiliar"],
  ["refer", "to refer for review"],
  ["retake", "to retake"],
  ["routine", "routine"],
  ["prediction", "without a disposition"],
  ["problem", "without a result"],
];

/** Updates the overview. `retry` is called to retry all cards without a result. */
export function updateOverview(cards, retry) {
  showSummary(cards);
  showRetryButton(cards, retry);
  showOrder(cards);
}

function showSummary(cards) {
  const parts = LABELS.map(([state, label]) => [inState(cards, state), label])
    .filter(([number]) => number > 0)
    .map(([number, label]) => `${number} ${label}`);
  const pending = inState(cards, "queued") + inState(cards, "running");
  if (pending > 0) parts.push(`${pending} in progress`);
  byId("results-head").hidden = cards.length === 0;
  byId("summary").textContent = `${count(cards.length, "image")}: ${parts.join(", ")}`;
}

function showRetryButton(cards, retry) {
  const failed = inState(cards, "problem");
  const button = byId("retry-all");
  button.hidden = failed < 2;
  button.textContent = `Retry all ${failed} without a result`;
  button.onclick = () => {
    byId("results").focus(); // the button may disappear
    retry();
  };
}

/* Lists finished cards, the most urgent first, in the order of the report. */
function showOrder(cards) {
  const finished = cards.filter(({ state }) => BY_URGENCY.includes(state));
  byId("order").hidden = finished.length < 2;
  byId("order-list").replaceChildren(...finished.sort(compare).map(link));
}

function compare(one, other) {
  return (
    urgency(other) - urgency(one) ||
    malignantProbability(other) - malignantProbability(one) ||
    one.name.localeCompare(other.name)
  );
}

/* An image to retake that reaches the urgent threshold ranks directly after the urgent ones. */
function urgency(card) {
  const { state, result } = card;
  const reachesUrgent = malignantProbability(card) >= (result?.malignant?.urgent ?? Infinity);
  if (state === "retake" && reachesUrgent) return BY_URGENCY.indexOf("urgent") - 0.5;
  return BY_URGENCY.indexOf(state);
}

function malignantProbability({ result }) {
  return result?.malignant?.probability ?? -1;
}

function inState(cards, state) {
  return cards.filter((card) => card.state === state).length;
}

function link(card) {
  return html(
    "li",
    {},
    html(
      "a",
      { href: `#${card.title.id}`, title: card.name, "data-state": card.state },
      icon(card.state),
      html("span", { class: "order-title" }, card.verdictTitle()),
      " ",
      html("span", { class: "order-name" }, card.name),
    ),
  );
}
