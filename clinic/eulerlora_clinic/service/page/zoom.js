/* A picture in a dialog: as large as the window, or in its full size. */

import { byId, html } from "./dom.js";
import { t } from "./language.js";

/** Opens the dialog with a picture.
 * @param {string} name
 * @param {Blob} file */
export function zoom(name, file) {
  const url = URL.createObjectURL(file);
  const size = byId("zoom-size");
  const picture = html("img", { src: url, alt: t("The image {name}", { name }) });
  byId("zoom-title").textContent = name;
  byId("zoom-picture").replaceChildren(picture);
  size.setAttribute("aria-pressed", "false");
  size.onclick = () => {
    const isFull = picture.classList.toggle("full");
    size.setAttribute("aria-pressed", String(isFull));
  };
  byId("zoom-close").onclick = () => byId("zoom-dialog").close();
  byId("zoom-dialog").onclose = () => {
    byId("zoom-picture").replaceChildren();
    URL.revokeObjectURL(url);
  };
  byId("zoom-dialog").showModal();
}
