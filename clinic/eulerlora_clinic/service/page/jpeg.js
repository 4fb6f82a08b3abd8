/* JPEG without metadata: the coded image is copied byte by byte (ITU-T T.81, annex B). */

import { orientationOf, tiffWith } from "./exif.js";

const [START, END, SCAN, COMMENT] = [0xd8, 0xd9, 0xda, 0xfe];
const APPLICATION = { first: 0xe0, last: 0xef };
const [EXIF_SEGMENT, EXIF] = [0xe1, "Exif"];
const [JFIF_SEGMENT, JFIF] = [0xe0, "JFIF\0"];
const JFIF_BYTES = 12; // the rest of the segment is a preview and its size

/** Returns the parts of a JPEG file without its metadata; keeps orientation and colour profile.
 * Bytes after the end marker are dropped too, and so is everything from a damaged segment on.
 * @param {Uint8Array} bytes
 * @param {[number, string][]} segments - markers and starts of the application segments to keep
 * @returns {Uint8Array[]} */
export function jpegWithoutMetadata(bytes, segments) {
  const kept = [];
  let orientation = null; // of the first EXIF segment before the pixels
  let hasPixels = false;
  let at = 2;
  while (at + 1 < bytes.length) {
    const [marker, start] = nextMarker(bytes, at);
    if (marker === END) {
      kept.push(bytes.subarray(start - 2, start));
      break;
    }
    const size = start + 1 < bytes.length ? (bytes[start] << 8) | bytes[start + 1] : 0;
    const end = start + size;
    if (marker === null || size < 2 || end > bytes.length) break;
    const content = bytes.subarray(start + 2, end);
    hasPixels ||= marker === SCAN;
    if (marker === EXIF_SEGMENT && startsWith(content, EXIF) && !hasPixels) {
      orientation ??= orientationOf(content.subarray(EXIF.length + 2));
    }
    if (marker === JFIF_SEGMENT && startsWith(content, JFIF)) {
      kept.push(segment(marker, [...content.subarray(0, JFIF_BYTES), 0, 0]));
    } else if (isKept(marker, content, segments)) {
      kept.push(bytes.subarray(start - 2, end));
    }
    at = end;
    if (marker === SCAN) {
      at = endOfScan(bytes, end);
      kept.push(bytes.subarray(end, at));
    }
  }
  return [Uint8Array.of(0xff, START), ...(orientation > 1 ? [exif(orientation)] : []), ...kept];
}

/* The next marker at or after `at`, and the position after it. Skips bytes of no segment. */
function nextMarker(bytes, at) {
  for (let position = at; position + 1 < bytes.length; position += 1) {
    const [first, second] = [bytes[position], bytes[position + 1]];
    if (first === 0xff && second !== 0x00 && second !== 0xff) return [second, position + 2];
  }
  return [null, bytes.length];
}

/* Within a scan, 0xFF is data before 0x00 and a restart marker before 0xD0 to 0xD7. */
function endOfScan(bytes, start) {
  let at = start;
  for (;;) {
    at = bytes.indexOf(0xff, at);
    if (at < 0 || at + 1 >= bytes.length) return bytes.length;
    const next = bytes[at + 1];
    if (next !== 0x00 && next !== 0xff && (next < 0xd0 || next > 0xd7)) return at;
    at += next === 0xff ? 1 : 2;
  }
}

function isKept(marker, content, segments) {
  if (marker === COMMENT) return false;
  if (marker < APPLICATION.first || marker > APPLICATION.last) return true;
  return segments.some(([kind, name]) => kind === marker && startsWith(content, name));
}

function startsWith(content, name) {
  return [...name].every((letter, index) => content[index] === letter.charCodeAt(0));
}

function exif(orientation) {
  const tiff = tiffWith(orientation);
  const identifier = [...EXIF].map((letter) => letter.charCodeAt(0));
  return segment(EXIF_SEGMENT, [...identifier, 0, 0, ...tiff]);
}

/* Of at most 253 bytes of content. */
function segment(marker, content) {
  return Uint8Array.of(0xff, marker, 0, 2 + content.length, ...content);
}
