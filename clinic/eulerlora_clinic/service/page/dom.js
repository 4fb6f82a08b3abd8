/* Functions that create elements, so that no text is parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Creates an HTML element. Omits attributes that are undefined, null or false. */
export function html(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an SVG element, like `html`. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Returns the element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Creates a button; a click calls `action`. */
export function button(label, action, attributes = {}) {
  const element = html("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", action);
  return element;
}

/** Creates a titled part of a card. */
export function part(title, ...content) {
  return html("section", { class: "part" }, html("h5", {}, title), content);
}

/** Creates a text that is the same in all languages, such as a name or a hash. */
export function verbatim(text) {
  return html("span", { translate: "no" }, text);
}

/** Makes the elements the children of a list; moves only those that are out of place, where the
 * browser can without a change of the focus. */
export function arrange(list, elements) {
  elements.forEach((element, index) => {
    if (list.children[index] === element) return;
    const keepsFocus = "moveBefore" in list && list.isConnected && element.isConnected;
    list[keepsFocus ? "moveBefore" : "insertBefore"](element, list.children[index] ?? null);
  });
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}
