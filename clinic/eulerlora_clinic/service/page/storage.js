/* The work list and what a person closed, in the storage of this tab: they survive a reload, and end
 * with the tab. */

import { Item } from "./item.js";
import { scaled } from "./preview.js";

const STORED_AS = "image-"; // followed by the item's id
const STORED_PX = 320;
const CLOSED = "closed-"; // followed by the id of an element

/** Stores items one by one. Without storage, or when it is full, they are only in the page. */
export class TabStorage {
  constructor() {
    this.previews = new Map(); // item -> the data URL of its small preview, or null
    this.stored = new Set();
  }

  /** The items of an earlier load of the page. */
  restored() {
    const ids = keysOf(STORED_AS).map((key) => Number(key.slice(STORED_AS.length))).sort((a, b) => a - b);
    return ids.map((id) => {
      const { preview, ...fields } = JSON.parse(sessionStorage.getItem(STORED_AS + id));
      const item = Item.restored({ id, ...fields, preview: preview && blobOf(preview) });
      this.previews.set(item, preview);
      this.stored.add(item);
      return item;
    });
  }

  /** Stores the present state of an item. Returns false if there is no room for it. */
  store(item) {
    if (!this.previews.has(item)) {
      this.previews.set(item, null);
      this.#shrink(item);
    }
    this.stored.add(item);
    const preview = this.previews.get(item);
    return this.#write(item, preview) || this.#write(item, null);
  }

  remove(item) {
    this.stored.delete(item);
    erase(STORED_AS + item.id);
  }

  /* Stores an item again once its preview is small enough to be stored. */
  async #shrink(item) {
    const picture = await item.preview;
    if (picture === null) return;
    this.previews.set(item, await dataUrlOf(await scaled(picture, STORED_PX, 0.7)));
    if (this.stored.has(item)) this.store(item);
  }

  #write(item, preview) {
    return write(STORED_AS + item.id, JSON.stringify({ ...item.fields, preview }));
  }
}

/** Keeps an element closed after a reload, until a person opens it. */
export function keepClosed(details) {
  const key = CLOSED + details.id;
  details.open &&= keysOf(key).length === 0;
  details.addEventListener("toggle", () => (details.open ? erase(key) : write(key, "true")));
}

function keysOf(start) {
  try {
    return Object.keys(sessionStorage).filter((key) => key.startsWith(start));
  } catch {
    return [];
  }
}

/* Returns false without storage, and when it is full. */
function write(key, value) {
  try {
    sessionStorage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}

function erase(key) {
  try {
    sessionStorage.removeItem(key);
  } catch {
    // no storage: nothing was stored
  }
}

function dataUrlOf(blob) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.readAsDataURL(blob);
  });
}

/* The page's policy admits no request of a data URL. */
function blobOf(dataUrl) {
  const [head, content] = dataUrl.split(",");
  const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: head.slice("data:".length, head.indexOf(";")) });
}
