/* Small images for the list and the card; the browser decodes a file once. */

import { taskQueue } from "./queue.js";

const PREVIEW_PX = 640;

const enqueue = taskQueue(1); // a decoded image needs up to 200 MB

/** Returns an upright JPEG with sides of at most 640 pixels; null for a file that the browser
 * cannot decode.
 * @param {Blob} file
 * @returns {Promise<Blob | null>} */
export function preview(file) {
  return new Promise((resolve) => {
    enqueue(async () => resolve(await scaled(file, PREVIEW_PX, 0.85).catch(() => null)));
  });
}

/** Shows a preview in an image element, without keeping its URL. */
export function show(element, small) {
  const url = URL.createObjectURL(small);
  const release = () => URL.revokeObjectURL(url);
  element.addEventListener("load", release, { once: true });
  element.addEventListener("error", release, { once: true });
  element.src = url;
}

/** Returns an image as an upright JPEG with sides of at most `maxSide` pixels. Rejects for a file that
 * the browser cannot decode. */
export async function scaled(file, maxSide, quality) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, maxSide / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const paint = canvas.getContext("2d");
  paint.fillStyle = "white"; // below transparent pixels
  paint.fillRect(0, 0, canvas.width, canvas.height);
  paint.imageSmoothingQuality = "high";
  paint.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", quality));
}
