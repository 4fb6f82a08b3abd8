/* The orientation in EXIF, the only part of the metadata that changes how an image looks. */

const ORIENTATION = 0x0112;
const UPRIGHT = 1;
const SHORT = 3;

/** Reads the orientation from a TIFF structure (EXIF 2.32, 4.6), one SHORT as in browsers.
 * @param {Uint8Array} tiff  without the "Exif" identifier
 * @returns {number} 1 to 8; 1 if there is none */
export function orientationOf(tiff) {
  const view = new DataView(tiff.buffer, tiff.byteOffset, tiff.byteLength);
  try {
    const little = view.getUint16(0) === 0x4949;
    const directory = view.getUint32(4, little);
    const entries = view.getUint16(directory, little);
    for (let index = 0; index < entries; index += 1) {
      const at = directory + 2 + 12 * index;
      if (view.getUint16(at, little) !== ORIENTATION) continue;
      const isShort = view.getUint16(at + 2, little) === SHORT && view.getUint32(at + 4, little) === 1;
      return isShort ? checked(view.getUint16(at + 8, little)) : UPRIGHT;
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // a damaged structure: decoders ignore it
  }
  return UPRIGHT;
}

/** A TIFF structure with an orientation and nothing else. */
export function tiffWith(orientation) {
  const view = new DataView(new ArrayBuffer(26));
  view.setUint32(0, 0x4d4d002a); // big endian
  view.setUint32(4, 8);
  view.setUint16(8, 1);
  view.setUint16(10, ORIENTATION);
  view.setUint16(12, SHORT);
  view.setUint32(14, 1);
  view.setUint16(18, orientation);
  return new Uint8Array(view.buffer);
}

function checked(orientation) {
  return orientation >= 1 && orientation <= 8 ? orientation : UPRIGHT;
}
