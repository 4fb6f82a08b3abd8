/* Files without metadata: no place, time, camera, name or comment; the pixels do not change. */

import { jpegWithoutMetadata } from "./jpeg.js";
import { pngWithoutMetadata } from "./png.js";
import { NO_IMAGE, Problem } from "./problems.js";
import { webpWithoutMetadata } from "./webp.js";

const FORMATS = [
  [[0xff, 0xd8, 0xff], 0, jpegWithoutMetadata],
  [[0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a], 0, pngWithoutMetadata],
  [[0x57, 0x45, 0x42, 0x50], 8, webpWithoutMetadata], // RIFF, size, WEBP
];

/** Returns the file without metadata. Throws Problem for a file that is no JPEG, PNG or WebP: what
 * it contains is unknown, so that it is not sent.
 * @param {Blob} file
 * @returns {Promise<Blob>} */
export async function withoutMetadata(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const format = FORMATS.find(([magic, at]) => magic.every((byte, i) => bytes[at + i] === byte));
  if (format === undefined) throw new Problem(NO_IMAGE);
  return new Blob(format[2](bytes), { type: file.type });
}
