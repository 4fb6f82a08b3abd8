/* The language of the page. Texts are English in the code, where `t` looks them up in the catalogue
 * that the service wrote into the page; numbers, dates and lists are written by the page's locale. */

import { byId } from "./dom.js";

export const LANGUAGE = document.documentElement.lang;

const catalogue = JSON.parse(byId("catalogue").textContent);
const pluralRules = new Intl.PluralRules(LANGUAGE);
const alternatives = new Intl.ListFormat(LANGUAGE, { type: "disjunction" });
const numberFormats = new Map(); // digits -> format

/** A text with its {placeholders} filled. Whole numbers are written by locale, texts as they are. */
export function t(text, values = {}) {
  return filled(catalogue.messages[text] ?? text, values);
}

/** The form for the number {n}, such as "{n} image" or "{n} images". */
export function plural(n, one, other, values = {}) {
  const forms = catalogue.messages[one] ?? { one, other };
  return filled(forms[pluralRules.select(n)] ?? forms.other, { n, ...values });
}

/** A text of the service that has values, and so perhaps no translation: then it is "". */
export function known(text) {
  return catalogue.messages[text] ?? (LANGUAGE.startsWith("en") ? text : "");
}

/** A warning of the service, by its code where its text has no translation. */
export function warningText({ code, message }) {
  return known(message) || (catalogue.warnings[code] ?? message);
}

/** A number with this many digits after the point. */
export function fixed(number, digits) {
  if (!numberFormats.has(digits)) {
    const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    numberFormats.set(digits, new Intl.NumberFormat(LANGUAGE, options));
  }
  return numberFormats.get(digits).format(Number(number.toFixed(digits))); // rounded by its exact value
}

/** "a, b or c". */
export function either(names) {
  return alternatives.format(names);
}

/** The present date and time. */
export function now() {
  return new Date().toLocaleString(LANGUAGE, { dateStyle: "long", timeStyle: "short" });
}

function filled(text, values) {
  return text.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    return typeof value === "number" ? fixed(value, 0) : value;
  });
}
