// The job over time: a line for each number, and an upright one for each new epoch.

import { count, drawn, duration, made, percent } from "./elements.js";

function plot(title, times, values, epochs, show) {
  const figure = made("figure");
  const known = values.filter((one) => one !== null);
  const most = Math.max(1e-9, ...known), newest = known.length ? show(known[known.length - 1]) : "–";
  figure.append(made("figcaption", `${title}: ${newest}${known.length ? `, at most ${show(most)}` : ""}`));
  const svg = drawn("svg", { class: "plot", viewBox: "0 0 600 90", preserveAspectRatio: "none", role: "img",
    "aria-label": `${title} over time, now ${newest}` });
  const start = times[0], span = Math.max(1, times[times.length - 1] - start);
  const x = (index) => (600 * (times[index] - start)) / span;
  for (let index = 1; index < times.length; index += 1) {
    if (epochs[index] !== epochs[index - 1])
      svg.append(drawn("line", { x1: x(index), x2: x(index), y1: 0, y2: 90 }));
  }
  let points = [];
  const draw = () => {
    if (points.length) svg.append(drawn("polyline", { points: points.join(" ") }));
    points = [];
  };
  values.forEach((value, index) => {
    if (value === null) draw();
    else points.push(`${x(index).toFixed(1)},${(86 - (82 * value) / most).toFixed(1)}`);
  });
  draw();
  figure.append(svg);
  return figure;
}

export function plotsOf(series) {
  if (series.at_ms.length < 2) return [made("p", "nothing yet", "empty")];
  const one = (title, field, show) => plot(title, series.at_ms, series[field], series.epoch, show);
  return [
    one("records a second", "records_per_second", count),
    one("busiest vertex", "busy", percent),
    one("most blocked vertex", "blocked", percent),
    one("records waiting inside", "queued_records", count),
    one("lag in records", "lag", count),
    one("watermark delay", "delay_ms", duration),
    // A record of an earlier release has none.
    ...(series.latency_ms ? [one("latency from source to sink (99 %)", "latency_ms", duration)] : []),
    one("checkpoint duration", "checkpoint_ms", duration),
    one("rows of state", "state_rows", count),
  ];
}
