/* Pictures come in: dropped, pasted or chosen. */

import { byId } from "./dom.js";

/** Calls `add` with every list of files that a person brings. */
export function takeIn(add) {
  const input = byId("files");
  byId("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add([...input.files]);
    input.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length === 0) return;
    event.preventDefault();
    add(files);
  });
  takeDropped(add);
}

function takeDropped(add) {
  const zone = byId("intake");
  let depth = 0; // dragenter and dragleave also tell of the elements within
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
    event.preventDefault(); // or the browser would leave the page for the picture
    depth = 0;
    zone.classList.remove("dragged-over");
    add([...event.dataTransfer.files]);
  });
}
