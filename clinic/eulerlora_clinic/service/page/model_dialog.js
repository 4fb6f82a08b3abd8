/* What a person has to know about a model: its dialog, and the limits beside the disclaimer. */

import { byId, html, verbatim } from "./dom.js";
import { fixed, plural, t } from "./language.js";
import { isSame, settingsOf } from "./settings.js";
import { shiftSection } from "./shift.js";
import { cases, dataName, decimal, exact, images, percent } from "./text.js";

const NON_COMMERCIAL = /(^|-)nc(-|$)/i; // in the identifier of a licence
const DATA = {
  ham10000: {
    citation: "HAM10000 (Tschandl, Rosendahl & Kittler, Scientific Data 5, 180161, 2018)",
    misuses: [
      t("photographs, tissue sections and all other images that were not taken through a dermatoscope"),
      t("dark skin: it has learned almost only from images of light skin"),
    ],
  },
}; // what models trained on it are not for, by the kind of the data

/** Opens the dialog. details: the response of GET /models/{name}. policy: of GET /triage/policy; null
 * if it does not apply. card: in Markdown, in English; "" without one. */
export function showModel(details, policy, card) {
  const { classes, thresholds, shift } = details;
  byId("model-title").textContent = t("The model {name}", details);
  byId("model-facts").replaceChildren(
    html("p", {}, purpose(policy)),
    section(t("What it is not for"), true, misuseList(details, policy)),
    section(t("Classes"), true, classList(classes)),
    ...(policy ? [section(t("How often it misses a case"), true, missedCases(details, policy))] : []),
    section(t("Images that it does not know"), true, unfamiliarity(details, policy)),
    section(t("Thresholds for images unlike the training images"), false, thresholdTable(thresholds)),
    ...(shift ? [section(t("Shift monitor"), shift.alarm, shiftSection(shift))] : []),
    section(t("Served here"), false, factList(modelFacts(details))),
    ...(card ? [html("p", {}, cardLink(card))] : []),
  );
  byId("model-close").onclick = () => byId("model-dialog").close();
  byId("model-dialog").showModal();
}

/** Shows what the model is not for, and its licence, with the disclaimer. Arguments as above. */
export function showLimits(details, policy) {
  const { licence, provenance } = details;
  const content = {
    "not-for": misuseList(details, policy),
    licence: licence && html("p", {}, verbatim(
      [licence.toUpperCase(), dataOf(provenance).citation].filter(Boolean).join("; "),
    )),
  };
  for (const [id, shown] of Object.entries(content)) {
    const element = byId(id);
    element.replaceChildren(...[element.firstElementChild, shown].filter(Boolean));
    element.hidden = !shown;
  }
}

function dataOf({ recipe }) {
  return DATA[recipe?.data?.kind] ?? {};
}

function purpose(policy) {
  if (policy) return t(policy.warning);
  return `${t("For demonstration and research only.")} ${
    t("The model says what an image resembles among its classes, and it can be wrong.")}`;
}

function misuseList({ classes, licence, provenance }, policy) {
  const items = [
    t("decisions about anyone's care, alone or as a second opinion"),
    policy && t("ruling out {critical} or another disease",
      { critical: t(policy.policy.target.critical.name) }),
    ...(dataOf(provenance).misuses ?? []),
    t("anything but its {n} classes: it always names one of them", { n: classes.length }),
    NON_COMMERCIAL.test(licence) && t("commercial use: the licence forbids it"),
  ];
  return html("ul", {}, items.filter(Boolean).map((item) => html("li", {}, item)));
}

/* A class is shown once if its description is its name. */
function classList(classes) {
  const hasCodes = classes.some(({ name, description }) => name !== description);
  return hasCodes
    ? factList(classes.map(({ name, description }) => [verbatim(name), t(description)]))
    : html("p", {}, classes.map(({ name }) => t(name)).join(", "));
}

/* What the policy misses in its measurements with this model. */
function missedCases({ revision, precision }, { policy: { target, evidence } }) {
  const known = evidence.filter((one) => one.revision === revision);
  const chosen = known.find(({ options }) => options.precision === precision) ?? known[0];
  if (!chosen?.measured.length) {
    return html("p", {}, t("The sensitivity and specificity of this policy have not been measured."));
  }
  const groups = { [target.critical.name]: "critical", [target.name]: "target" }; // perhaps one
  const columns = [
    ...Object.entries(groups).map(([name, key]) =>
      [t("Missed: {target}", { target: t(name) }), (one) => missed(one[key])]),
    [t("Harmless, but to be looked at"), ({ others }) =>
      ofAll(others.lesions - neither(others), others)],
  ];
  return [
    html("p", {}, t("A case is missed if it is neither urgent nor unfamiliar nor above the routine " +
      "line. How often the class in first place is wrong is in the model card.")),
    html(
      "table",
      { class: "measured" },
      tableHead([t("Images"), ...columns.map(([title]) => title)]),
      html("tbody", {}, chosen.measured.map((one) => html(
        "tr",
        {},
        html("th", { scope: "row" }, dataName(one.data)),
        columns.map(([title, cell]) => html("td", { "data-title": title }, cell(one))),
      ))),
    ),
  ];
}

function missed(counts) {
  const { sensitivity_low: low, sensitivity_high: high } = counts;
  return [
    ofAll(neither(counts), counts),
    html("span", {}, t("95% interval {low} to {high}",
      { low: percent(1 - high), high: percent(1 - low) })),
  ];
}

function ofAll(n, { lesions }) {
  return html("strong", {}, t("{n} of {all}", { n, all: lesions }));
}

function neither({ lesions, urgent, unfamiliar, refer }) {
  return lesions - urgent - unfamiliar - refer;
}

/* When an image is called unfamiliar with the recommended setting, and what follows. */
function unfamiliarity(details, policy) {
  const [recommended] = settingsOf(details, policy);
  const limit = details.thresholds
    .find(({ options }) => isSame(recommended, options))?.feature_distance;
  if (!limit) return html("p", {}, t("Without a flag, no image is called unfamiliar, whatever it shows."));
  const rules = policy?.policy.unfamiliar;
  const sentences = [
    t("The model calls an image unfamiliar if its feature distance is above {threshold}. That happens " +
      "to {share} of the images like those it learned from; some others are not noticed.",
    { threshold: decimal(limit.threshold), share: percent(1 - limit.kept) }),
    rules && t("From a distance of {far} on, an image is never urgent, whatever it resembles.",
      { far: decimal(rules.far) }),
    rules?.ood && t("Nor is an unfamiliar image whose highest probability is below its threshold."),
  ];
  return html("p", {}, sentences.filter(Boolean).join(" "));
}

/* The card opens as text in another tab; a link to the service would lack the key. */
function cardLink(card) {
  const url = URL.createObjectURL(new Blob([card], { type: "text/plain;charset=utf-8" }));
  byId("model-dialog").addEventListener("close", () => URL.revokeObjectURL(url), { once: true });
  return html("a", { href: url, target: "_blank", hreflang: "en" }, t("The whole model card (in English)"));
}

function section(title, open, ...content) {
  return html("details", { open }, html("summary", {}, html("h3", {}, title)), content);
}

function modelFacts(details) {
  const { provenance, image_limits: limits } = details;
  const known = [
    [t("Revision"), details.revision],
    [t("Licence"), details.licence],
    [t("Trained on"), dataOf(provenance).citation ?? dataName(String(provenance.data ?? ""))],
    [t("Recipe"), provenance.recipe?.name ?? provenance.recipe],
    [t("Created"), provenance.date],
    [t("Hardware"), provenance.hardware],
    [t("Adapters"), details.adapters],
  ];
  const size = details.input_size;
  return [
    ...known.filter(([, value]) => ["string", "number"].includes(typeof value))
      .map(([title, value]) => [title, verbatim(value)]),
    [t("Input size"), t("{width} × {height} pixels", { width: size, height: size })],
    [t("Accepts"), t("{least} to {most} pixels per side, at most {size} per file", {
      least: limits.min_side, most: limits.max_side, size: mebibytes(details.max_body_bytes),
    })],
  ];
}

function thresholdTable(thresholds) {
  if (thresholds.length === 0) {
    return html("p", {}, t("This model has no thresholds and flags no image."));
  }
  const head = [
    t("Passes"), t("Highest probability below"), t("Feature distance above"), t("Measured on"),
  ];
  return html(
    "table",
    {},
    tableHead(head),
    html(
      "tbody",
      {},
      thresholds.map((threshold) =>
        html(
          "tr",
          {},
          html("th", { scope: "row" }, passesOf(threshold.options)),
          html("td", {}, withKept(threshold.msp, threshold.kept)),
          html("td", {}, distanceThreshold(threshold.feature_distance)),
          html(
            "td",
            {},
            `${dataName(threshold.data)}; ${images(threshold.images)}. ${kept(threshold)}`,
          ),
        ),
      ),
    ),
  );
}

/* What the thresholds promise; "" if the checkpoint does not say. */
function kept({ tolerance }) {
  if (!tolerance) return "";
  const { share, confidence, units, unit } = tolerance;
  const few = confidence < 0.95 ? t("Too few to rely on.") : "";
  const promise = t("Keeps at least {share} of new cases with a confidence of {confidence} ({cases}).", {
    share: percent(share), confidence: percent(confidence), cases: cases(units, unit),
  });
  return `${promise} ${few}`;
}

function distanceThreshold(limit) {
  return limit ? withKept(limit.threshold, limit.kept) : t("no threshold");
}

function withKept(threshold, kept) {
  return t("{threshold}; {share} of these images are not flagged",
    { threshold: exact(threshold), share: percent(kept) });
}

function passesOf({ mode, samples }) {
  if (mode === "det") return t("fixed");
  return samples === "auto"
    ? t("sampled as needed")
    : plural(samples, "sampled, {n} sample", "sampled, {n} samples");
}

function factList(pairs) {
  return html("dl", {}, pairs.map(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
}

function tableHead(titles) {
  return html("thead", {}, html("tr", {}, titles.map((title) => html("th", { scope: "col" }, title))));
}

function mebibytes(bytes) {
  return `${fixed(bytes / 2 ** 20, 0)} MiB`;
}
