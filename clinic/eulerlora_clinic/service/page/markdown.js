/* Model cards: the part of Markdown that they use. Text is never parsed as markup. */

import { html } from "./dom.js";
import { t } from "./language.js";

/** The sections of a card. title: null for the text before the first heading of level 2.
 * @param {string} markdown
 * @returns {{title: string | null, lines: string[]}[]} */
export function sectionsOf(markdown) {
  const sections = [{ title: null, lines: [] }];
  let inCode = false;
  for (const line of markdown.split("\n")) {
    inCode = inCode !== line.startsWith("```");
    const heading = inCode ? null : /^## +(.*)/.exec(line);
    if (heading) sections.push({ title: heading[1].trim(), lines: [] });
    else sections.at(-1).lines.push(line);
  }
  return sections;
}

/** The section whose title contains the words, or undefined. */
export function sectionAbout(sections, words) {
  return sections.find(({ title }) => title?.toLowerCase().includes(words));
}

/** The elements of a section's lines. Omits images and headings of level 1. */
export function render(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const [block, next] = blockAt(lines, at);
    if (block !== null) blocks.push(block);
    at = next;
  }
  return blocks;
}

function blockAt(lines, at) {
  const line = lines[at];
  if (line.startsWith("```")) return code(lines, at + 1);
  if (line.startsWith("|")) return table(lines, at);
  if (/^[-*] /.test(line)) return listFrom(lines, at);
  const heading = /^#{3,6} +(.*)/.exec(line);
  if (heading) return [html("h4", {}, inline(heading[1])), at + 1];
  if (line.trim() === "" || line.startsWith("# ") || line.startsWith("![")) return [null, at + 1];
  const end = endOf(lines, at + 1, (next) => next.trim() === "" || /^([-*] |\||#|```)/.test(next));
  return [html("p", {}, inline(lines.slice(at, end).join(" "))), end];
}

function listFrom(lines, at) {
  const end = endOf(lines, at, (next) => next.trim() === "");
  const items = lines.slice(at, end).join("\n").split(/\n(?=[-*] )/);
  return [html("ul", {}, items.map((item) => html("li", {}, inline(item.slice(2))))), end];
}

function table(lines, at) {
  const end = endOf(lines, at, (next) => !next.startsWith("|"));
  const cells = (line) => line.replace(/^\||\|\s*$/g, "").split("|").map((cell) => cell.trim());
  const [head, , ...rows] = lines.slice(at, end).map(cells);
  const content = html(
    "table",
    {},
    html("thead", {}, html("tr", {}, head.map((cell) => html("th", { scope: "col" }, inline(cell))))),
    html("tbody", {}, rows.map(([first, ...rest]) =>
      html("tr", {}, html("th", { scope: "row" }, inline(first)),
        rest.map((cell) => html("td", {}, inline(cell)))))),
  );
  return [html("div", { class: "frame", tabindex: 0, role: "group", "aria-label": t("Table") }, content), end];
}

function code(lines, at) {
  const end = endOf(lines, at, (next) => next.startsWith("```"));
  const text = lines.slice(at, end).join("\n");
  const attributes = { class: "code", tabindex: 0, role: "group", "aria-label": t("Commands") };
  return [html("pre", attributes, text), end + 1];
}

function endOf(lines, at, isEnd) {
  const length = lines.slice(at).findIndex(isEnd);
  return length < 0 ? lines.length : at + length;
}

/* Code, strong text and the text of links. */
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]*\))/).map((piece) => {
    if (/^`.+`$/.test(piece)) return html("code", {}, piece.slice(1, -1));
    if (/^\*\*.+\*\*$/.test(piece)) return html("strong", {}, inline(piece.slice(2, -2)));
    return /^\[.+\]\(.*\)$/.test(piece) ? piece.slice(1, piece.indexOf("](")) : piece;
  });
}
