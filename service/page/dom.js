/* Elements made by calls, so that nothing is ever parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes that are undefined, null or false are left out. */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element, likewise. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** The page's element of this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** A button of which a click calls `act`. */
export function button(words, act, attributes = {}) {
  const made = html("button", { type: "button", ...attributes }, words);
  made.addEventListener("click", act);
  return made;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}
