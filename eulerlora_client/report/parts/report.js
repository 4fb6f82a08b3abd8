"use strict";
{
  const table = document.getElementById("results");
  const results = [...table.querySelectorAll("tbody.result")]; // most urgent first
  const headers = [...table.querySelectorAll("th[data-sort]")];
  const kinds = [...document.querySelectorAll("input[name=shown]")];
  const state = document.getElementById("state");
  const opposite = { ascending: "descending", descending: "ascending" };

  // Results without a figure come last, whichever way the others go.
  const byKey = (key, direction) => (one, other) => {
    const [left, right] = [one, other].map((each) => Number(each.dataset[key] ?? NaN));
    if (isNaN(left) || isNaN(right)) return isNaN(left) - isNaN(right);
    return direction === "ascending" ? left - right : right - left;
  };

  function tell() {
    const shown = results.filter((result) => !result.hidden).length;
    const sorted = headers.find((header) => header.hasAttribute("aria-sort"));
    state.textContent =
      `${shown} of ${results.length} shown, sorted by ` +
      `${sorted.textContent.trim().toLowerCase()}, ${sorted.dataset[sorted.getAttribute("aria-sort")]}.`;
  }

  function sort(header) {
    const now = header.getAttribute("aria-sort");
    const direction = now === null ? header.dataset.first : opposite[now];
    for (const each of headers) each.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    table.append(...results.toSorted(byKey(header.dataset.sort, direction)));
    tell();
  }

  function filter() {
    const wanted = new Set(kinds.filter((kind) => kind.checked).map((kind) => kind.value));
    for (const result of results) {
      result.hidden = ![...result.classList].some((name) => wanted.has(name));
    }
    tell();
  }

  for (const header of headers) {
    const button = header.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => sort(header));
  }
  for (const kind of kinds) kind.addEventListener("change", filter);
  document.querySelector("fieldset.tally").disabled = false;
  filter();
}
