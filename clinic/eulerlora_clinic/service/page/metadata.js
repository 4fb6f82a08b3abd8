/* Files without metadata: no place, time, camera, name or comment; the pixels do not change. */

import { byId } from "./dom.js";
import { bytesOf } from "./item.js";
import { jpegWithoutMetadata } from "./jpeg.js";
import { pngWithoutMetadata } from "./png.js";
import { Problem, noImage } from "./problems.js";
import { webpWithoutMetadata } from "./webp.js";

const FORMATS = [
  [[0xff, 0xd8], 0, "JPEG", jpegWithoutMetadata],
  [[0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a], 0, "PNG", pngWithoutMetadata],
  [[0x57, 0x45, 0x42, 0x50], 8, "WEBP", webpWithoutMetadata], // RIFF, size, WEBP
];

/** Returns the file without metadata. Throws Problem as `bytesOf`, and for a file that is no JPEG, PNG
 * or WebP: what it contains is unknown, so that it is not sent.
 * @param {Blob} file
 * @returns {Promise<Blob>} */
export async function withoutMetadata(file) {
  const bytes = await bytesOf(file);
  const format = formatOf(bytes);
  const table = tableOfKinds();
  if (format === undefined) throw new Problem(noImage(kindOf(bytes, table)));
  const [, , name, parts] = format;
  return new Blob(parts(bytes, table.kept[name]), { type: file.type });
}

/** Throws Problem for a file of a known kind that the service does not read, with the name of the kind
 * in the language of the page. */
export async function refuseOtherKind(file) {
  const table = tableOfKinds();
  const bytes = await bytesOf(file.slice(0, table.length));
  const kind = formatOf(bytes) === undefined ? kindOf(bytes, table) : undefined;
  if (kind !== undefined && !kind.is_read) throw new Problem(noImage(kind));
}

function formatOf(bytes) {
  return FORMATS.find(([magic, at]) => magic.every((byte, i) => bytes[at + i] === byte));
}

function tableOfKinds() {
  return JSON.parse(byId("file-kinds").textContent);
}

/* What the file is, by the table of the service; undefined if it is no known kind. */
function kindOf(bytes, { kinds, length }) {
  const start = Array.from(bytes.subarray(0, length), (byte) => String.fromCharCode(byte)).join("");
  return kinds.find(({ pattern }) => new RegExp(`^(?:${pattern})`, "s").test(start));
}
