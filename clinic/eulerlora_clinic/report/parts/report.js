"use strict";
{
  const table = document.getElementById("results");
  const results = [...table.querySelectorAll("tbody.result")]; // most urgent first
  const headers = [...table.querySelectorAll("th[data-sort]")];
  const statuses = [...document.querySelectorAll("input[name=shown]")];
  const state = document.getElementById("state");
  const opposite = { ascending: "descending", descending: "ascending" };

  // Results without a value come last in both directions.
  const byKey = (key, direction) => (one, other) => {
    const [left, right] = [one, other].map((result) => Number(result.dataset[key] ?? NaN));
    if (isNaN(left) || isNaN(right)) return isNaN(left) - isNaN(right);
    return direction === "ascending" ? left - right : right - left;
  };

  function showState() {
    const shown = results.filter((result) => !result.hidden).length;
    const sorted = headers.find((header) => header.hasAttribute("aria-sort"));
    const values = {
      shown, all: results.length, column: sorted.textContent.trim(),
      order: sorted.dataset[sorted.getAttribute("aria-sort")],
    };
    state.textContent = state.dataset.text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  function sort(header) {
    const now = header.getAttribute("aria-sort");
    const direction = now === null ? header.dataset.first : opposite[now];
    for (const other of headers) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    table.append(...results.toSorted(byKey(header.dataset.sort, direction)));
    showState();
  }

  function filter() {
    const selected = new Set(statuses.filter((box) => box.checked).map((box) => box.value));
    for (const result of results) {
      result.hidden = ![...result.classList].some((name) => selected.has(name));
    }
    showState();
  }

  for (const header of headers) {
    const button = header.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => sort(header));
  }
  for (const box of statuses) box.addEventListener("change", filter);
  document.querySelector("fieldset.filter").disabled = false;
  filter();
}
