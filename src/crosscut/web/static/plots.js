// The job over time: a line for each number, an upright one for each new epoch, and the value under the pointer.

import { count, drawn, duration, made, percent } from "./elements.js";

const WIDTH = 600, HEIGHT = 90, TOP = 4;
const clock = (ms) => new Date(ms).toLocaleTimeString();

class Plot {
  constructor(title, show) {
    this.title = title;
    this.show = show;
    this.figure = made("figure");
    this.caption = made("figcaption");
    this.frame = made("div", null, "frame");
    this.svg = drawn("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.pointer = drawn("line", { class: "pointer", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.most = made("span", null, "most");
    this.under = made("output", null, "under");
    this.frame.append(this.svg, this.most, made("span", "0", "least"), this.under);
    this.times = made("p", null, "times");
    this.from = this.times.appendChild(made("span"));
    this.until = this.times.appendChild(made("span"));
    this.figure.append(this.caption, this.frame, this.times);
    this.pointed = null;
    this.frame.addEventListener("pointermove", (event) => {
      const box = this.frame.getBoundingClientRect();
      this.point((event.clientX - box.left) / Math.max(1, box.width));
    });
    this.frame.addEventListener("pointerleave", () => this.point(null));
  }

  update(times, values, epochs) {
    this.at = times;
    this.values = values;
    const known = values.filter((one) => one !== null);
    const most = Math.max(1e-9, ...known), newest = known.length ? this.show(known[known.length - 1]) : "–";
    this.caption.textContent = `${this.title}: ${newest}`;
    this.most.textContent = most > 1e-9 ? this.show(most) : "";
    this.from.textContent = clock(times[0]);
    this.until.textContent = clock(times[times.length - 1]);
    this.svg.setAttribute("aria-label", `${this.title} over time, now ${newest}, at most ${known.length ? this.show(most) : "–"}`);
    const parts = [];
    for (let index = 1; index < times.length; index += 1) {
      if (epochs[index] !== epochs[index - 1])
        parts.push(drawn("line", { class: "epoch", x1: this.x(index), x2: this.x(index), y1: 0, y2: HEIGHT }));
    }
    let points = [];
    const draw = () => {
      if (points.length) parts.push(drawn("polyline", { points: points.join(" ") }));
      points = [];
    };
    values.forEach((value, index) => {
      if (value === null) draw();
      else points.push(`${this.x(index).toFixed(1)},${(HEIGHT - TOP - ((HEIGHT - 2 * TOP) * value) / most).toFixed(1)}`);
    });
    draw();
    this.svg.replaceChildren(...parts, this.pointer);
    this.point(this.pointed);
  }

  x(index) {
    const start = this.at[0], span = Math.max(1, this.at[this.at.length - 1] - start);
    return (WIDTH * (this.at[index] - start)) / span;
  }

  // Shows the value that is nearest to a share of the width.
  point(share) {
    this.pointed = share;
    this.pointer.setAttribute("visibility", share === null ? "hidden" : "visible");
    if (share === null) {
      this.under.textContent = "";
      return;
    }
    let nearest = 0;
    this.at.forEach((_, index) => {
      if (Math.abs(this.x(index) - share * WIDTH) < Math.abs(this.x(nearest) - share * WIDTH)) nearest = index;
    });
    this.pointer.setAttribute("x1", this.x(nearest));
    this.pointer.setAttribute("x2", this.x(nearest));
    const value = this.values[nearest];
    this.under.textContent = `${clock(this.at[nearest])}: ${value === null ? "–" : this.show(value)}`;
  }
}

const NUMBERS = [
  ["records a second", "records_per_second", count],
  ["latency from source to sink (99 %)", "latency_ms", duration],
  ["busiest vertex", "busy", percent],
  ["most blocked vertex", "blocked", percent],
  ["records waiting inside", "queued_records", count],
  ["lag in records", "lag", count],
  ["watermark delay", "delay_ms", duration],
  ["checkpoint duration", "checkpoint_ms", duration],
  ["rows of state", "state_rows", count],
];

export class Plots {
  constructor(place) {
    this.place = place;
    this.plots = new Map();
  }

  show(series) {
    if (series.at_ms.length < 2) {
      this.place.replaceChildren(made("p", "nothing yet", "empty"));
      return;
    }
    const figures = [];
    for (const [title, field, show] of NUMBERS) {
      // A record of an earlier release lacks some; others the job never has.
      if (!(series[field] || []).some((one) => one !== null)) continue;
      if (!this.plots.has(field)) this.plots.set(field, new Plot(title, show));
      const plot = this.plots.get(field);
      plot.update(series.at_ms, series[field], series.epoch);
      figures.push(plot.figure);
    }
    if (figures.length !== this.place.childElementCount || figures[0] !== this.place.firstElementChild)
      this.place.replaceChildren(...figures);
  }
}
