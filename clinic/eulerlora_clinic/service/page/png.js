/* PNG without metadata: the chunks of the image are copied byte by byte (PNG, third edition). */

import { orientationOf, tiffWith } from "./exif.js";

const SIGNATURE_BYTES = 8;
const ANCILLARY = 0x20; // bit of the first letter of a chunk that a decoder may ignore

/** Returns the parts of a PNG file without its metadata; keeps orientation and colour profile.
 * Everything after IEND, and from a damaged chunk on, is dropped.
 * @param {Uint8Array} bytes
 * @param {string[]} chunks - ancillary chunks to keep
 * @returns {Uint8Array[]} */
export function pngWithoutMetadata(bytes, chunks) {
  const kept = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let orientation = null; // browsers ignore one behind the pixels
  let [at, kind, hasPixels] = [SIGNATURE_BYTES, "", false];
  while (at + 12 <= bytes.length && kind !== "IEND") {
    const end = at + 12 + view.getUint32(at);
    if (end > bytes.length) break;
    kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    const content = bytes.subarray(at + 8, end - 4);
    if (kind === "IDAT") hasPixels = true;
    if (kind === "eXIf" && !hasPixels) orientation ??= orientationOf(content);
    const isCritical = !(bytes[at + 4] & ANCILLARY);
    if (isCritical || chunks.includes(kind)) kept.push(bytes.subarray(at, end));
    at = end;
  }
  if (orientation > 1) kept.splice(1, 0, pngChunk("eXIf", tiffWith(orientation)));
  return [bytes.subarray(0, SIGNATURE_BYTES), ...kept];
}

function pngChunk(kind, content) {
  const bytes = new Uint8Array(12 + content.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, content.length);
  bytes.set([...kind].map((letter) => letter.charCodeAt(0)), 4);
  bytes.set(content, 8);
  view.setUint32(8 + content.length, crc(bytes.subarray(4, 8 + content.length)));
  return bytes;
}

/* CRC-32 (PNG, annex D). */
function crc(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}
