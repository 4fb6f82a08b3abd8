/* The list of all images: in groups, in order of urgency, with a filter. */

import { arrange, byId, html } from "./dom.js";
import { Entry } from "./entry.js";
import { icon } from "./icons.js";
import { plural, t } from "./language.js";
import { images } from "./text.js";

const ALL = "all";

/** The groups, the most urgent first. */
const GROUPS = [
  "urgent", "unfamiliar", "refer", "retake", "unclear", "agreed", "problem", "pending", "routine",
];
const STATUSES = ["urgent", "unfamiliar", "refer", "retake", "routine", "unclear", "agreed", "problem"];
const TITLES = {
  unfamiliar: t("Unfamiliar"), unclear: t("Unclear"), agreed: t("Passes agree"),
  problem: t("Not assessed"), pending: t("In progress"),
};
const COUNTS = {
  urgent: (n) => t("{n} urgent", { n }),
  unfamiliar: (n) => t("{n} unfamiliar", { n }),
  refer: (n) => t("{n} refer", { n }),
  retake: (n) => t("{n} retake", { n }),
  routine: (n) => t("{n} routine", { n }),
  unclear: (n) => t("{n} unclear", { n }),
  agreed: (n) => t("{n} passes agree", { n }),
  problem: (n) => t("{n} not assessed", { n }),
  pending: (n) => t("{n} in progress", { n }),
};
const NOTES = {
  unfamiliar: t("The model has not learned from images like these. A person must look at them."),
  unclear: t("The passes disagree, or no class stands out."),
  agreed: t("All passes put the same class first. They can be wrong together."),
  problem: t("The file or the request failed."),
};

export class WorkList {
  /** @param {{retry: Function, remove: Function, decide: Function, grouped: Function,
   * edited: Function}} actions */
  constructor(actions) {
    this.actions = { ...actions, opened: (item) => this.opened.add(item) };
    this.entries = new Map(); // item -> Entry
    this.opened = new Set(); // items that a person opened or closed
    this.sections = new Map(); // status -> section
    this.shown = ALL;
    this.titles = new Map();
    this.pathways = new Map();
    byId("filters").addEventListener("change", (event) => {
      this.shown = event.target.value;
      this.#applyFilter();
    });
  }

  /** dispositions: the titles and pathways of the policy. */
  setDispositions(dispositions) {
    this.titles = new Map(dispositions.map(({ disposition, title }) => [disposition, t(title)]));
    this.pathways = new Map(dispositions.map(({ disposition, pathway }) => [disposition, t(pathway)]));
  }

  titleOf(status) {
    return this.titles.get(status) ?? TITLES[status] ?? status;
  }

  /** Shows the items; `names` describes the classes of an item's model. */
  update(items, names) {
    for (const item of items) {
      if (!this.entries.has(item)) this.entries.set(item, new Entry(item, this.actions));
      this.entries.get(item).update((status) => this.titleOf(status), names(item));
    }
    this.#arrange(items);
    this.#showFilters(items);
    this.#openAlone(items);
  }

  remove(item) {
    this.entries.get(item).element.remove();
    this.entries.delete(item);
    this.opened.delete(item);
  }

  openAll(isOpen) {
    for (const [item, entry] of this.entries) {
      entry.open(isOpen);
      entry.lesion.open = isOpen;
      this.opened.add(item);
    }
  }

  /** Shows all images of each lesion. */
  openLesions() {
    for (const { lesion } of this.entries.values()) lesion.open ||= !lesion.hidden;
  }

  focus(item) {
    const { button, element } = this.entries.get(item);
    const lesion = element.parentElement.closest("details");
    if (lesion !== null) lesion.open = true;
    button.focus();
  }

  /** The items in the order of the list. */
  sorted(items) {
    return lesionsOf(items).flat();
  }

  /** The images that decide on a lesion. */
  deciding(items) {
    return lesionsOf(items).map(first);
  }

  /** The number of lesions by status: "3 images: 1 urgent, 2 routine". */
  summary(items) {
    const lesions = lesionsOf(items);
    const statuses = this.#statuses(lesions.map(first));
    const all = images(items.length);
    return lesions.length < items.length
      ? plural(lesions.length, "{images} of {n} lesion: {statuses}", "{images} of {n} lesions: {statuses}",
        { images: all, statuses })
      : t("{images}: {statuses}", { images: all, statuses });
  }

  #statuses(items) {
    return Object.entries(COUNTS)
      .map(([status, words]) => [words, inGroup(items, status).length])
      .filter(([, number]) => number > 0)
      .map(([words, number]) => words(number))
      .join(", ");
  }

  /* A single card is open, unless a person closed it. */
  #openAlone(items) {
    byId("groups").classList.toggle("alone", items.length === 1);
    for (const item of items) {
      if (!this.opened.has(item)) this.entries.get(item).open(items.length === 1);
    }
  }

  /* A lesion has the place of its most urgent image. Restores the focus of a moved element. */
  #arrange(items) {
    const focused = document.activeElement;
    const lesions = lesionsOf(items);
    for (const status of GROUPS) {
      const members = inGroup(lesions.map(first), status);
      const section = this.#section(status);
      section.hidden = members.length === 0;
      section.querySelector(".group-count").textContent = members.length;
      section.querySelector(".group-note").textContent = this.#noteOf(status, members);
      const elements = members.map((item) => this.entries.get(item).element);
      arrange(section.querySelector("ol"), elements);
    }
    for (const [item, ...others] of lesions) {
      const entries = others.map((other) => this.entries.get(other));
      entries.forEach((entry) => entry.showOthers([], ""));
      this.entries.get(item).showOthers(entries, this.#statuses(others));
    }
    if (focused !== document.activeElement && focused?.isConnected) focused.focus();
    this.#applyFilter();
  }

  #section(status) {
    if (!this.sections.has(status)) {
      const id = `group-${status}`;
      const section = html(
        "section",
        { class: "group", "data-state": status, "data-status": status, "aria-labelledby": id },
        html("h3", { id }, icon(status), html("span", { class: "group-title" }), " ",
          html("span", { class: "group-count" })),
        html("p", { class: "group-note" }),
        html("ol", { class: "entries" }),
      );
      this.sections.set(status, section);
      byId("groups").append(section);
    }
    const section = this.sections.get(status);
    section.querySelector(".group-title").textContent = this.titleOf(status);
    return section;
  }

  #noteOf(status, [first]) {
    const hasPolicy = first !== undefined && first.result?.policy !== null;
    return (hasPolicy ? this.pathways.get(status) : undefined) ?? NOTES[status] ?? "";
  }

  #showFilters(images) {
    const items = lesionsOf(images).map(first);
    const present = STATUSES.filter((status) => inGroup(items, status).length > 0);
    if (this.shown !== ALL && !present.includes(this.shown)) this.shown = ALL;
    byId("filters").hidden = present.length < 2;
    const options = [[ALL, t("All"), items.length]].concat(
      present.map((status) => [status, this.titleOf(status), inGroup(items, status).length]),
    );
    const focused = document.activeElement?.name === "shown";
    const radios = options.map((option) => this.#filter(...option));
    byId("filters").replaceChildren(html("legend", {}, t("Show")), ...radios);
    if (focused) byId("filters").querySelector(":checked").focus();
    this.#applyFilter();
  }

  #filter(value, title, number) {
    const checked = value === this.shown;
    return html(
      "label",
      { "data-state": value },
      html("input", { type: "radio", name: "shown", value, checked }),
      html("span", {}, value === ALL ? null : icon(value), title, " ", html("b", {}, String(number))),
    );
  }

  #applyFilter() {
    for (const section of this.sections.values()) {
      const isShown = this.shown === ALL || section.dataset.status === this.shown;
      section.classList.toggle("filtered", !isShown);
    }
  }
}

/** The items of each lesion, in the order of the list. The first of a lesion is the most urgent by
 * its result or by a person; the group of that one is the lesion's. */
function lesionsOf(items) {
  const rank = ({ status, group }) => Math.min(GROUPS.indexOf(status), GROUPS.indexOf(group));
  const sorted = [...items].sort(
    (one, other) =>
      rank(one) - rank(other) ||
      other.target - one.target ||
      one.isFar - other.isFar ||
      one.name.localeCompare(other.name, undefined, { numeric: true }),
  );
  const lesions = new Map(); // text or item -> items
  for (const item of sorted) {
    const key = item.lesion.trim() || item;
    lesions.set(key, [...(lesions.get(key) ?? []), item]);
  }
  return [...lesions.values()].sort(([one], [other]) =>
    GROUPS.indexOf(one.group) - GROUPS.indexOf(other.group));
}

function first([item]) {
  return item;
}

function inGroup(items, group) {
  return items.filter((item) => item.group === group);
}
