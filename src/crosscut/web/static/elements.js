// What the parts of the page are made of. Every text is the content of a text node: none becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export function drawn(kind, attributes = {}, text = null) {
  const one = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
  if (text !== null) one.textContent = text;
  return one;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(1) + " G";
  if (size >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(1) + " k";
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

export function made(kind, text = null, className = "") {
  const one = document.createElement(kind);
  if (text !== null) one.textContent = text;
  if (className) one.className = className;
  return one;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${index ? value.toFixed(1) : value} ${units[index]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 7200000 ? `${(ms / 60000).toFixed(0)} min` : `${(ms / 3600000).toFixed(1)} h`;
}

export const moment = (ms) => (ms ? new Date(ms).toLocaleString() : "–");
// What people call a vertex; messages about tasks have its id.
export const vertexName = (one) => one.name || one.vertex;
export const vertexTitle = (one) =>
  (vertexName(one) === one.vertex ? one.vertex : `${one.name} (${one.vertex})`);
export const taskName = (task) => (task ? `${task.vertex}[${task.index}]` : "–");
export const percent = (share) => `${Math.round(100 * share)} %`;
