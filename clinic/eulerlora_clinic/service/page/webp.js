/* WebP without metadata: the chunks of the image are copied byte by byte (RFC 9649). */

import { orientationOf, tiffWith } from "./exif.js";

const HEADER_BYTES = 12;
const FLAGS_AT = 8; // in the chunk VP8X
const [EXIF_FLAG, XMP_FLAG] = [0x08, 0x04];

/** Returns the parts of a WebP file without its metadata; keeps orientation and colour profile.
 * Everything after the RIFF chunk, and from a damaged chunk on, is dropped.
 * @param {Uint8Array} bytes
 * @param {string[]} chunks - to keep
 * @returns {Uint8Array[]} */
export function webpWithoutMetadata(bytes, chunks) {
  const kept = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const total = Math.min(bytes.length, 8 + view.getUint32(4, true));
  let orientation = null;
  for (let at = HEADER_BYTES; at + 8 <= total; ) {
    const size = view.getUint32(at + 4, true);
    const end = at + 8 + size + (size % 2);
    if (at + 8 + size > total) break;
    const kind = String.fromCharCode(...bytes.subarray(at, at + 4));
    const content = bytes.subarray(at + 8, at + 8 + size);
    if (kind === "EXIF") orientation ??= orientationOf(withoutIdentifier(content));
    if (chunks.includes(kind)) kept.push(bytes.slice(at, end));
    at = end;
  }
  const extended = kept.find((part) => part[3] === "X".charCodeAt(0));
  if (extended !== undefined) {
    extended[FLAGS_AT] &= ~(EXIF_FLAG | XMP_FLAG);
    if (orientation > 1) {
      extended[FLAGS_AT] |= EXIF_FLAG;
      kept.push(webpChunk("EXIF", tiffWith(orientation)));
    }
  }
  return [header(kept), ...kept];
}

/* Some writers put the identifier of JPEG's EXIF segment before the TIFF structure. */
function withoutIdentifier(content) {
  return content[0] === "E".charCodeAt(0) ? content.subarray(6) : content;
}

function webpChunk(kind, content) {
  const bytes = new Uint8Array(8 + content.length); // tiffWith has an even size
  bytes.set([...kind].map((letter) => letter.charCodeAt(0)));
  new DataView(bytes.buffer).setUint32(4, content.length, true);
  bytes.set(content, 8);
  return bytes;
}

function header(parts) {
  const bytes = new Uint8Array(HEADER_BYTES);
  bytes.set([..."RIFF    WEBP"].map((letter) => letter.charCodeAt(0)));
  const size = parts.reduce((sum, part) => sum + part.length, 4);
  new DataView(bytes.buffer).setUint32(4, size, true);
  return bytes;
}
