/* An image in the list: a row that opens and closes its card. */

import { pendingContent, problemContent, resultContent } from "./card.js";
import { Decision } from "./decision.js";
import { arrange, button, html } from "./dom.js";
import { icon } from "./icons.js";
import { plural, t } from "./language.js";
import { show } from "./preview.js";
import { advice, sentence } from "./problems.js";
import { shown } from "./shown.js";
import { percents } from "./text.js";
import {
  FEW_PIXELS_MEANING, agreementWords, hasFewPixels, lineWords, looksLike, qualityFault,
} from "./words.js";
import { zoom } from "./zoom.js";

const IDENTIFIER = ["identifier", t("Identifier"), 100]; // field of the item, label, characters
const NOTE = ["note", t("Note"), 500];
const LESION = ["lesion", t("Lesion"), 100];

export class Entry {
  /** @param {import("./item.js").Item} item
   * @param {{retry: Function, remove: Function, opened: Function, decide: Function,
   * grouped: Function, edited: Function}} actions  called with the item */
  constructor(item, actions) {
    this.item = item;
    this.actions = actions;
    this.shown = []; // state, progress, result and problem of the last update
    this.name = html("span", { class: "row-name", id: `name-${item.id}`, translate: "no" }, item.name);
    this.identifier = html("span", { class: "row-identifier", translate: "no" });
    this.note = html("span", { class: "row-note" });
    this.written = html("span", { class: "print-only", translate: "no" });
    this.cells = html("span", { class: "row-cells" });
    this.button = button([], () => this.#toggle(), {
      class: "row",
      "aria-expanded": "false",
      "aria-controls": `card-${item.id}`,
    });
    this.facts = html("p", { class: "facts" });
    this.content = html("div", { class: "card-content" });
    this.card = html("div", { class: "card", id: `card-${item.id}`, hidden: true });
    this.decision = new Decision(item, actions);
    this.others = html("ol", { class: "entries" });
    this.lesionTitle = html("summary");
    this.lesion = html("details", { class: "lesion", hidden: true }, this.lesionTitle, this.others);
    this.element = html("li", { class: "entry" });
    this.#build();
    this.#showPreview();
  }

  get isOpen() {
    return !this.card.hidden;
  }

  /** Opens or closes the card. */
  open(isOpen) {
    this.card.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", String(isOpen));
  }

  /** Shows the state of the item. titles: from a status to its title. names: from a class code to
   * its description. */
  update(titles, names) {
    const { item } = this;
    const version = [item.state, item.progress, item.result, item.problem, item.sameAs];
    if (version.every((part, index) => part === this.shown[index])) return;
    this.shown = version;
    this.decision.update(titles);
    this.article.dataset.state = item.status;
    this.article.setAttribute("aria-busy", String(item.isPending));
    this.article.classList.toggle("busy", item.isPending && item.result !== null);
    this.note.textContent = noteOf(item);
    this.cells.replaceChildren(...cellsOf(item, titles, names));
    const quality = item.result?.quality;
    this.facts.textContent = [
      quality ? t("{width} × {height} pixels", quality) : "",
      item.sameAs === null ? "" : t("the same file as {name}", item.sameAs),
      item.file === null ? t("kept from before the reload; to analyse it again, add its file") : "",
    ].filter(Boolean).join(", ") + (quality && hasFewPixels(quality) ? `. ${FEW_PIXELS_MEANING}` : "");
    if (item.isPending && item.result !== null) return; // shows the earlier result until then
    this.content.replaceChildren(...this.#contentOf(names));
  }

  /** Shows the other images of its lesion, which are less urgent.
   * @param {Entry[]} entries
   * @param {string} statuses  theirs, in words */
  showOthers(entries, statuses) {
    this.lesion.hidden = entries.length === 0;
    this.lesionTitle.textContent =
      plural(entries.length, "{n} more image of lesion {lesion}: {statuses}",
        "{n} more images of lesion {lesion}: {statuses}", { lesion: this.item.lesion, statuses });
    arrange(this.others, entries.map(({ element }) => element));
  }

  #contentOf(names) {
    const { item } = this;
    if (item.isPending) return [pendingContent(item)];
    if (item.problem !== null) return [problemContent(item, () => this.#retry())];
    return resultContent(item, names);
  }

  #build() {
    const { item } = this;
    this.thumbnail = html("span", { class: "row-image", "aria-hidden": "true" });
    this.picture = button([], async () => zoom(item.name, item.file ?? (await item.preview)), {
      class: "card-image",
      "aria-label": t("Enlarge {name}", item),
      disabled: true, // until there is a preview
    });
    this.button.append(
      this.thumbnail,
      html("span", { class: "row-text" }, this.name, this.identifier, this.written, this.note),
      this.cells,
      html("span", { class: "row-arrow", "aria-hidden": "true" }),
    );
    const remove = button(t("Remove"), () => this.actions.remove(item), {
      class: "quiet small",
      "aria-label": t("Remove {name}", item),
    });
    this.card.append(
      html(
        "div",
        { class: "card-side" },
        this.picture, this.facts, this.#field(IDENTIFIER), this.#field(NOTE), this.#lesionField(), remove,
      ),
      this.content,
    );
    this.#showFields();
    this.article = html(
      "article",
      { "aria-labelledby": `name-${item.id}` },
      html("h4", {}, this.button),
      this.decision.element,
      this.card,
    );
    this.element.append(this.article, this.lesion);
  }

  #lesionField() {
    const field = this.#field(LESION, "focusout"); // part of the text would move the row
    field.classList.add("triage-only");
    const hint = html("p", { class: "hint", id: `lesion-hint-${this.item.id}` },
      t("Images with the same text here show one lesion. The most urgent one decides."));
    field.querySelector("input").setAttribute("aria-describedby", hint.id);
    field.addEventListener("focusout", () => this.actions.grouped(this.item));
    field.append(hint);
    return field;
  }

  #field([name, label, maxlength], event = "input") {
    const { item } = this;
    const input = html("input", {
      id: `${name}-${item.id}`, type: "text", autocomplete: "off", maxlength, value: item[name],
    });
    input.addEventListener(event, () => {
      item[name] = input.value;
      this.#showFields();
      this.actions.edited(item);
    });
    return html("div", { class: "field" }, html("label", { for: input.id }, label), input);
  }

  /* Outside of the card, which has no fields on paper. */
  #showFields() {
    const { identifier, note } = this.item;
    this.identifier.textContent = identifier;
    this.written.textContent = note && t("{name}: {value}", { name: NOTE[1], value: note });
  }

  async #showPreview() {
    const picture = await this.item.preview;
    if (picture === null) {
      this.picture.replaceChildren(html("span", { class: "no-preview" }, t("No preview")));
      return;
    }
    this.picture.disabled = false;
    for (const frame of [this.thumbnail, this.picture]) {
      const image = html("img", { alt: "" }); // the button has a name
      show(image, picture);
      frame.replaceChildren(image);
    }
  }

  #toggle() {
    this.open(!this.isOpen);
    this.actions.opened(this.item);
  }

  #retry() {
    this.button.focus(); // the button in the card disappears
    this.actions.retry(this.item);
  }
}

/** The outcome in one sentence, for screen readers. */
export function announcement(item) {
  return t("{name}: {value}", { name: item.name, value: outcome(item) });
}

function outcome({ problem, result }) {
  if (problem !== null) return sentence(problem.title);
  if (result.disposition !== null) return `${t(result.title)}. ${reasonsText(result)}`;
  return `${shown(result).figures?.label ?? t("unfamiliar")}.`;
}

function reasonsText(result) {
  return shown(result).reasons.map(({ words }) => t(words)).join(" ");
}

function noteOf({ problem, result, isPending, progress, sameAs }) {
  if (isPending) return progress;
  if (problem !== null) return `${sentence(problem.title)} ${sentence(problem.detail || advice(problem))}`;
  const same = sameAs === null ? "" : `${t("The same file as {name}.", sameAs)} `;
  return same + reasonsText(result);
}

function cellsOf(item, titles, names) {
  const { problem, result, status } = item;
  const group = html("span", { class: "pill" }, icon(status), titles(status));
  if (problem !== null || result === null) return [group];
  const fault = qualityFault(result);
  const quality = fault === null ? null : cell(fault, t("quality"));
  const { figures, target } = shown(result);
  if (figures === null) return [group, quality].filter(Boolean);
  return [
    group,
    cell(looksLike(figures, names), t("looks like"), "label"),
    target === null ? null : targetCell(result),
    cell(agreementWords(figures), ""),
    quality,
  ].filter(Boolean);
}

function targetCell(result) {
  const { target } = result;
  const [share] = percents(target.probability, target.routine);
  return cell(
    share, t("{target}, {side}", { target: t(target.name), side: lineWords(result) }), "target",
  );
}

function cell(value, label, kind = "") {
  return html("span", { class: `cell ${kind}` }, html("strong", {}, value), " ", html("span", {}, label));
}
