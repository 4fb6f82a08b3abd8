/* The shift monitor: whether the images here differ from those of the calibration. */

import { byId, html } from "./dom.js";
import { count, dataName, decimal, percent } from "./text.js";

const SIGNALS = {
  feature_distance: "unfamiliar image",
  feature_distance_quartile: "feature distance above its upper quartile",
  msp: "highest probability (MSP) below its threshold",
  label: "predicted class",
};
const COLUMNS = ["Signal", "Images", "Share", "Expected", "Tolerated", "Evidence"];

/** Shows the notice if the monitor has an alarm. details: the response of GET /models/{name}. */
export function showShiftNotice({ name, shift, thresholds }) {
  const notice = shift?.alarm
    ? `The images here differ from those that the thresholds of ${name} were checked on ` +
      `(${dataName(thresholds[0].data)}). Do not rely on the groups until a site calibration ` +
      "(eulerlora site fit) has checked the thresholds on images of this site. “About the model” " +
      "shows the measurements."
    : "";
  if (byId("shift").textContent !== notice) byId("shift").textContent = notice;
}

/** The state of the monitor with a table of its signals. */
export function shiftSection({ pictures, alarm, limit, signals }) {
  const verdict = alarm
    ? "They differ: a site calibration (eulerlora site fit) is needed."
    : "No difference is established.";
  return [
    html(
      "p",
      {},
      `${count(pictures, "image")} since this revision is served, compared with the calibration ` +
        `images. ${verdict} An evidence of ${decimal(limit)} sets an alarm.`,
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
    pictures, percent(rate), percent(expected), percent(tolerated),
    alarm ? `${decimal(evidence)}, alarm` : decimal(evidence),
  ];
  return html(
    "tr",
    {},
    html("th", { scope: "row" }, signal),
    cells.map((cell) => html("td", {}, cell)),
  );
}
