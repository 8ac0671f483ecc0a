// The way of a barrier across the graph: which tasks it has come to, and how far their snapshots are.

import { drawn, duration, made, taskName } from "./elements.js";

const STATES = ["ahead", "arrived", "frozen", "stored"];
const SAID = ["not there yet", "come, and being aligned", "state frozen", "snapshot durable"];
const CELL = 11, CELLS_A_LINE = 50, LEFT = 190, ROW = 14, ROWS_MAX = 60, WIDTH = 560;

// How far each task is: an index of STATES.
export class Way {
  constructor(checkpoint, states) {
    this.checkpoint = checkpoint;
    this.states = states;
  }

  of(vertex) {
    return this.states.get(vertex) || [];
  }

  // Of the checkpoint under way, as workers and acknowledgements tell; null: there is none.
  static underWay(job) {
    const trace = job.checkpoints.findLast((one) => one.outcome === "under way");
    if (!trace) return null;
    const stored = new Set(trace.tasks.map((one) => taskName(one.task)));
    const n = trace.checkpoint_id;
    return new Way(n, grouped(job.tasks, (one) => {
      if (stored.has(taskName(one.task))) return 3;
      return one.captured >= n ? 2 : one.barrier >= n ? 1 : 0;
    }));
  }

  // Of one whose tasks are known, at a moment after it was triggered.
  static at(trace, ms) {
    return new Way(trace.checkpoint_id, grouped(trace.tasks, (one) => {
      if (ms >= one.acknowledged_ms) return 3;
      return ms >= one.freeze_ms ? 2 : ms >= one.barrier_ms ? 1 : 0;
    }));
  }
}

function grouped(tasks, stateOf) {
  const states = new Map();
  for (const one of [...tasks].sort((a, b) => a.task.index - b.task.index)) {
    const known = states.get(one.task.vertex) || [];
    known.push(stateOf(one));
    states.set(one.task.vertex, known);
  }
  return states;
}

function key(names, texts) {
  const found = made("p", null, "key");
  found.append(...names.map((name, index) => made("span", texts[index], name)));
  return found;
}

export class Crossing {
  constructor(place) {
    this.place = place;
    this.title = made("h3");
    this.cells = made("div", null, "scrolls");
    this.cells.id = "cells";
    this.slider = made("input");
    Object.assign(this.slider, { type: "range", id: "moment", min: 0, max: 1000, value: 1000 });
    this.slider.addEventListener("input", () => this.pick());
    this.said = made("output");
    this.label = made("label", "moment ");
    this.label.append(this.slider, " ", this.said);
    this.bars = made("div", null, "scrolls");
    this.barsKey = key(["alignment", "store"], ["alignment", "store"]);
    this.parts = [this.title, this.label, this.cells, key(STATES, SAID), this.bars, this.barsKey];
    this.shown = this.structure = "";
  }

  show(job, chosen) {
    // Only the newest few are known by their tasks; instead of one that is not any more, the last one.
    const detailed = job.checkpoints.filter((one) => one.tasks.length && one.outcome !== "under way");
    const underWay = Way.underWay(job);
    const live = underWay && [null, underWay.checkpoint].includes(chosen) ? underWay : null;
    const trace = detailed.find((one) => one.checkpoint_id === chosen)
      || detailed.findLast((one) => one.outcome === "completed");
    if (!live && !trace) {
      this.place.replaceChildren();
      return;
    }
    if (!this.place.firstChild) this.place.append(...this.parts);
    this.label.hidden = this.bars.hidden = this.barsKey.hidden = Boolean(live);
    if (live) {
      this.shown = "";
      this.title.textContent = `Barrier ${live.checkpoint} on its way`;
      this.paint(live);
      return;
    }
    const shown = JSON.stringify(trace);
    if (shown === this.shown) return;
    this.shown = shown;
    this.trace = trace;
    this.most = Math.max(1e-3, ...trace.tasks.map((one) => one.acknowledged_ms));
    this.title.textContent = `Barrier ${trace.checkpoint_id} from task to task`
      + (trace.tasks.length > ROWS_MAX ? ` (below, the ${ROWS_MAX} that took longest of ${trace.tasks.length})` : "");
    this.drawBars(trace);
    this.pick();
  }

  // Shows the moment that the slider says.
  pick() {
    // In this order the end of the slider is exactly the last moment.
    const ms = this.most * (this.slider.value / 1000);
    this.said.textContent = `${duration(ms)} after it was triggered`;
    this.paint(Way.at(this.trace, ms));
  }

  paint(way) {
    const structure = JSON.stringify([...way.states].map(([vertex, states]) => [vertex, states.length]));
    if (structure !== this.structure) {
      this.structure = structure;
      this.drawCells(way);
    }
    [...way.states].forEach(([vertex, states], row) => {
      const { group, text, cells } = this.rows[row];
      const reached = (state) => states.filter((one) => one >= state).length;
      text.textContent = `${reached(1)} come, ${reached(2)} frozen, ${reached(3)} durable of ${states.length}`;
      group.setAttribute("aria-label", `${vertex}: ${text.textContent}`);
      cells.forEach((cell, index) => cell.setAttribute("class", STATES[states[index]]));
    });
  }

  drawCells(way) {
    let y = 0;
    const svg = drawn("svg", { width: LEFT + CELLS_A_LINE * CELL + 10, role: "group", "aria-label": "tasks by vertex" });
    this.rows = [...way.states].map(([vertex, states]) => {
      const group = svg.appendChild(drawn("g", { role: "img" }));
      const name = vertex.length > 28 ? vertex.slice(0, 27) + "…" : vertex;
      group.append(drawn("text", { x: 0, y: y + 11, class: "small" }, name));
      const text = group.appendChild(drawn("text", { x: LEFT, y: y + 11, class: "small" }));
      const top = y + 16;
      const cells = states.map((_, index) => group.appendChild(drawn("rect", { width: CELL - 2, height: CELL - 2,
        x: LEFT + (index % CELLS_A_LINE) * CELL, y: top + Math.floor(index / CELLS_A_LINE) * CELL })));
      y = top + 6 + Math.ceil(states.length / CELLS_A_LINE) * CELL;
      return { group, text, cells };
    });
    svg.setAttribute("height", y);
    this.cells.replaceChildren(svg);
  }

  // When the barrier came to each task, was aligned, and when the snapshot was durable.
  drawBars(trace) {
    const tasks = [...trace.tasks].sort((a, b) => b.acknowledged_ms - a.acknowledged_ms).slice(0, ROWS_MAX);
    const height = tasks.length * ROW + 22;
    const svg = drawn("svg", { width: LEFT + WIDTH + 80, height, role: "img", "aria-label": `way of barrier ${trace.checkpoint_id}` });
    const x = (ms) => LEFT + (WIDTH * ms) / this.most;
    tasks.forEach((one, index) => {
      const y = index * ROW;
      svg.append(drawn("text", { x: 0, y: y + 11, class: "small" }, taskName(one.task).slice(0, 30)));
      const bar = (from, to, kind) => svg.append(drawn("rect", { class: kind, x: x(from), y: y + 2, height: ROW - 4,
        width: Math.max(1, x(to) - x(from)) }));
      bar(one.barrier_ms, one.freeze_ms, "alignment");
      bar(one.freeze_ms, one.acknowledged_ms, "store");
    });
    svg.append(drawn("text", { x: LEFT, y: height - 5, class: "small" }, "0"));
    svg.append(drawn("text", { x: LEFT + WIDTH, y: height - 5, class: "small" }, duration(this.most)));
    this.bars.replaceChildren(svg);
  }
}
