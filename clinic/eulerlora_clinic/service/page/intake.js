/* Images that are dropped, pasted, taken or chosen, and the examples of the page. */

import { byId } from "./dom.js";
import { plural } from "./language.js";

const FIELDS = "input:not([type=checkbox], [type=radio]), textarea, select";

/** Calls `add` with every list of added files. */
export function acceptFiles(add) {
  for (const [button, input] of [[byId("choose"), byId("files")], [byId("take"), byId("camera")]]) {
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      add([...input.files]);
      input.value = ""; // allows the same file to be chosen again
    });
  }
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
    addDropped(event.dataTransfer, add);
  });
}

/* Adds files, and the images of folders. */
async function addDropped({ files, items }, add) {
  // The entries are gone once the handler of the event has returned.
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  if (!entries.some(({ isDirectory }) => isDirectory)) {
    add([...files]);
    return;
  }
  const found = (await Promise.all(entries.map(filesOf))).flat();
  const images = found.filter(({ isImage }) => isImage);
  const others = found.length - images.length;
  byId("left-out").textContent =
    others === 0 ? "" : plural(others, "{n} file of other kinds is left out.",
      "{n} files of other kinds are left out.");
  if (images.length > 0) add(images.map(({ file }) => file));
}

/* The file of an entry, or all files below a folder, sorted. One that is not in a folder is added
 * whatever it is. */
async function filesOf(entry, isBelow = false) {
  if (entry.isDirectory) {
    const entries = await entriesOf(entry.createReader());
    entries.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
    return (await Promise.all(entries.map((one) => filesOf(one, true)))).flat();
  }
  const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
  return [{ file, isImage: !isBelow || isImage(file) }];
}

/* A reader returns some entries at a time, and none at the end. */
async function entriesOf(reader) {
  const all = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (some.length === 0) return all;
    all.push(...some);
  }
}

function isImage({ name, type }) {
  return !name.startsWith(".") && (type.startsWith("image/") || /\.dcm$/i.test(name));
}
