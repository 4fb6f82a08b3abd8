/* Images that are dropped, pasted or chosen, and the examples of the page. */

import { byId } from "./dom.js";

const FIELDS = "input:not([type=checkbox], [type=radio]), textarea, select";

/** Calls `add` with every list of added files. */
export function acceptFiles(add) {
  const input = byId("files");
  byId("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = ""; // allows the same file to be chosen again
  });
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    // Spreadsheets put a picture of the cells beside their text.
    if (files.length === 0 || event.target.closest?.(FIELDS)) return;
    event.preventDefault();
    add(files);
  });
  acceptDroppedFiles(add);
  for (const example of document.querySelectorAll("[data-example]")) {
    example.addEventListener("click", async () => add([await exampleFile(example.dataset.example)]));
  }
}

async function exampleFile(name) {
  const response = await fetch(new URL(`page/${name}`, document.baseURI));
  return new File([await response.blob()], name, { type: "image/jpeg" });
}

function acceptDroppedFiles(add) {
  const zone = byId("intake");
  let depth = 0; // dragenter and dragleave also fire for nested elements
  const withFiles = (event) => [...event.dataTransfer.types].includes("Files");

  document.addEventListener("dragenter", (event) => {
    if (!withFiles(event)) return;
    depth += 1;
    zone.classList.add("dragged-over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!withFiles(event)) return;
    depth = Math.max(0, depth - 1);
    zone.classList.toggle("dragged-over", depth > 0);
  });
  document.addEventListener("dragover", (event) => {
    if (withFiles(event)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (!withFiles(event)) return;
    event.preventDefault(); // otherwise the browser opens the image instead of the page
    depth = 0;
    zone.classList.remove("dragged-over");
    add([...event.dataTransfer.files]);
  });
}
