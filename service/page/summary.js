/* The line over all cards. */

import { byId } from "./dom.js";
import { counted } from "./words.js";

const KINDS = [
  ["urgent", "to prioritise"],
  ["refer", "to refer for review"],
  ["retake", "to take again"],
  ["routine", "routine"],
  ["prediction", "without a disposition"],
  ["problem", "without an answer"],
];

/** Tells how many cards are in which state; offers to retry those without an answer. */
export function summarise(cards, retry) {
  const pending = cards.filter(({ state }) => state === "waiting" || state === "asked").length;
  const found = KINDS.map(([state, words]) => [cards.filter((card) => card.state === state), words])
    .filter(([those]) => those.length > 0)
    .map(([those, words]) => `${those.length} ${words}`);
  if (pending > 0) found.push(`${pending} in work`);
  byId("results-head").hidden = cards.length === 0;
  byId("summary").textContent = `${counted(cards.length, "picture")}: ${found.join(", ")}`;

  const failed = cards.filter(({ state }) => state === "problem").length;
  const button = byId("retry-all");
  button.hidden = failed < 2;
  button.textContent = `Retry all ${failed} without an answer`;
  button.onclick = () => {
    byId("results").focus(); // the button may be about to go
    retry();
  };
}
