// Tables of which only the rows that have changed are made anew: what is opened, selected or scrolled stays.

import { made } from "./elements.js";

const find = (id) => document.getElementById(id);
const shownOf = new Map();
// The rows of each table, by what they show.
const linesOf = new WeakMap();

// Tells whether the data of a part of the page differ from those that it was made of.
export function changed(id, data) {
  const text = JSON.stringify(data);
  if (shownOf.get(id) === text) return false;
  shownOf.set(id, text);
  return true;
}

// Columns: title, a function of the row that returns a text or an element, and "number" or "text".
export function table(id, columns, rows, nothing, classOf = () => "") {
  const place = find(id);
  if (!rows.length) {
    const row = made("tr");
    row.append(made("td", nothing, "empty"));
    place.replaceChildren(row);
    return;
  }
  const focused = document.activeElement && place.contains(document.activeElement) ? document.activeElement.id : null;
  const body = place.tBodies[0] || tableBody(place, columns), before = linesOf.get(body) || new Map(), lines = new Map();
  for (const row of rows) {
    let key = JSON.stringify(row);
    while (lines.has(key)) key += "+";
    lines.set(key, before.get(key) || lineOf(columns, row, classOf(row)));
  }
  linesOf.set(body, lines);
  // Rows that stay are not touched: a button in one can be pressed meanwhile.
  const stay = new Set(lines.values());
  for (const line of [...body.rows]) if (!stay.has(line)) line.remove();
  let next = body.firstChild;
  for (const line of stay) {
    if (line === next) next = next.nextSibling;
    else body.insertBefore(line, next);
  }
  if (focused && document.activeElement.id !== focused) find(focused)?.focus();
}

function tableBody(place, columns) {
  const head = made("thead"), titles = made("tr"), body = made("tbody");
  for (const [title, , kind] of columns) {
    const cell = made("th", title, kind || "");
    cell.scope = "col";
    titles.append(cell);
  }
  head.append(titles);
  place.replaceChildren(head, body);
  return body;
}

function lineOf(columns, row, className) {
  const line = made("tr", null, className);
  for (const [, show, kind] of columns) {
    const found = show(row), cell = made("td", found instanceof Node ? null : found, kind || "");
    if (found instanceof Node) cell.append(found);
    line.append(cell);
  }
  return line;
}
