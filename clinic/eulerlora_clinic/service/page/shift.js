/* The shift monitor: whether the images here differ from those of the calibration. */

import { byId, html } from "./dom.js";
import { fixed, t } from "./language.js";
import { dataName, decimal, images, percent } from "./text.js";

const SIGNALS = {
  feature_distance: t("unfamiliar image"),
  feature_distance_quartile: t("feature distance above its upper quartile"),
  msp: t("highest probability (MSP) below its threshold"),
  label: t("predicted class"),
};
const COLUMNS = [
  t("Signal"), t("Images"), t("Share"), t("Expected"), t("Tolerated"), t("Evidence"),
];

/** Shows the notice if the monitor has an alarm. details: the response of GET /models/{name}. */
export function showShiftNotice({ name, shift, thresholds }) {
  const notice = shift?.alarm
    ? t("The images here differ from those that the thresholds of {name} were checked on ({data}). Do " +
      "not rely on the groups until a site calibration (eulerlora site fit) has checked the thresholds " +
      "on images of this site. “About the model” shows the measurements.",
    { name, data: dataName(thresholds[0].data) })
    : "";
  if (byId("shift").textContent !== notice) byId("shift").textContent = notice;
}

/** The state of the monitor with a table of its signals. */
export function shiftSection({ pictures, alarm, limit, signals }) {
  const verdict = alarm
    ? t("They differ: a site calibration (eulerlora site fit) is needed.")
    : t("No difference is established.");
  return [
    html(
      "p",
      {},
      t("{images} since this revision is served, compared with the calibration images. {verdict} An " +
        "evidence of {limit} sets an alarm.",
      { images: images(pictures), verdict, limit: decimal(limit) }),
    ),
    html(
      "table",
      {},
      html("thead", {}, html("tr", {}, COLUMNS.map((title) => html("th", { scope: "col" }, title)))),
      html("tbody", {}, signals.map(signalRow)),
    ),
  ];
}

function signalRow({ name, label, pictures, rate, expected, tolerated, evidence, alarm }) {
  const signal = label === null ? SIGNALS[name] ?? name : `${SIGNALS[name] ?? name} ${label}`;
  const cells = [
    fixed(pictures, 0), percent(rate), percent(expected), percent(tolerated),
    alarm ? t("{evidence}, alarm", { evidence: decimal(evidence) }) : decimal(evidence),
  ];
  return html(
    "tr",
    {},
    html("th", { scope: "row" }, signal),
    cells.map((cell) => html("td", {}, cell)),
  );
}
