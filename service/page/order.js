/* Whose turn it is among several pictures: links to their cards, the most urgent first. */

import { byId, html } from "./dom.js";
import { icon } from "./icons.js";

const BY_URGENCY = ["routine", "problem", "prediction", "retake", "refer", "urgent"];

/** Lists the cards that have come to something, once there are two; in the report's order. */
export function listInOrder(cards) {
  const settled = cards.filter(({ state }) => BY_URGENCY.includes(state));
  byId("order").hidden = settled.length < 2;
  byId("order-list").replaceChildren(...settled.sort(moreUrgent).map(entry));
}

function moreUrgent(one, other) {
  return (
    urgency(other) - urgency(one) ||
    malignant(other) - malignant(one) ||
    one.name.localeCompare(other.name)
  );
}

/* What is to be taken again, but resembles the malignant group enough, stands next to the urgent. */
function urgency(card) {
  const { state, answer } = card;
  const suspicious = malignant(card) >= (answer?.malignant?.urgent ?? Infinity);
  if (state === "retake" && suspicious) return BY_URGENCY.indexOf("urgent") - 0.5;
  return BY_URGENCY.indexOf(state);
}

function malignant({ answer }) {
  return answer?.malignant?.probability ?? -1;
}

function entry(card) {
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
