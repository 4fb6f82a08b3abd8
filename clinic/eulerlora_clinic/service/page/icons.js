/* One shape per group, so that no information depends on colour. */

import { svg } from "./dom.js";

const SHAPES = {
  urgent: ["M12 2.5 22 20.5H2Z", "M12 9v5.5", "M12 17.2v.6"],
  unfamiliar: [
    "M7 3h10l5 9-5 9H7l-5-9Z",
    "M9.3 9.6a2.7 2.7 0 1 1 4.3 2.2c-1.1.8-1.6 1.3-1.6 2.4",
    "M12 16.9v.6",
  ],
  refer: ["M12 2 22 12 12 22 2 12Z", "M8 12h8", "M12.8 8.8 16 12l-3.2 3.2"],
  retake: ["M3 7h4l2-3h6l2 3h4v13H3Z", "M12 9.5a4 4 0 1 1-3.6 2.3", "M8 9v3h3"],
  routine: ["M12 2.5a9.5 9.5 0 1 0 0 19 9.5 9.5 0 0 0 0-19Z", "M12 7v5l3.5 2"],
  problem: ["M3 3h18v18H3Z", "M8.5 8.5l7 7", "M15.5 8.5l-7 7"],
  pending: ["M12 2.5a9.5 9.5 0 1 0 0 19 9.5 9.5 0 0 0 0-19Z", "M8 12h.6", "M12 12h.6", "M16 12h.6"],
  unclear: ["M12 2 22 12 12 22 2 12Z", "M8 10c2-2 4 2 8 0", "M8 14c2-2 4 2 8 0"],
  agreed: ["M4 20V12", "M10 20V4", "M16 20V9", "M22 20H2"],
};

/** The icon of a group; decorative, hidden from screen readers. */
export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    SHAPES[name].map((d) => svg("path", { d })),
  );
}
