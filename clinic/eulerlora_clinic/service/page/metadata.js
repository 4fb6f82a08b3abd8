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
  const format = FORMATS.find(([magic, at]) => magic.every((byte, i) => bytes[at + i] === byte));
  const table = JSON.parse(byId("file-kinds").textContent);
  if (format === undefined) throw new Problem(noImage(kindOf(bytes, table)));
  const [, , name, parts] = format;
  return new Blob(parts(bytes, table.kept[name]), { type: file.type });
}

/* What the file is, by the table of the service; undefined if it is no known kind. */
function kindOf(bytes, { kinds, length }) {
  const start = Array.from(bytes.subarray(0, length), (byte) => String.fromCharCode(byte)).join("");
  return kinds.find(({ pattern }) => new RegExp(`^(?:${pattern})`, "s").test(start));
}
