// The graph of the job: drawn once for each structure, and then only its texts and bars are changed.
// Nothing here makes markup of a text: every text is the content of a text node.

import { Way } from "./barrier.js";
import { count, drawn, duration, percent, vertexName, vertexTitle } from "./elements.js";

const WIDTH = 224, HEIGHT = 128, MARGIN = 40, TIP = 12;
const ACROSS = { gapAlong: 110, gapBeside: 26, isDown: false };
const DOWN = { gapAlong: 56, gapBeside: 16, isDown: true };
const NARROW = window.matchMedia("(max-width: 600px)");

function shortened(text, most) {
  return text.length <= most ? text : text.slice(0, most - 1) + "…";
}

// Each vertex stands one column behind the last of those that send to it, back edges aside.
function columns(job) {
  const column = new Map(job.vertices.map((one) => [one.vertex, 0]));
  for (const vertex of job.vertices) {
    for (const edge of job.edges) {
      if (edge.target === vertex.vertex && !edge.is_back_edge)
        column.set(vertex.vertex, Math.max(column.get(vertex.vertex), column.get(edge.source) + 1));
    }
  }
  return column;
}

function chainOf(vertex) {
  return vertex.operators.map(([uid, kind]) => (uid.endsWith("-" + kind) ? kind : `${uid} (${kind})`)).join(" > ");
}

// Sources have a notch where others have inputs, sinks a tip where others have outputs.
function outline(vertex) {
  const left = vertex.is_source ? `L ${TIP} ${HEIGHT / 2}` : "";
  const right = vertex.is_sink ? `H ${WIDTH - TIP} L ${WIDTH} ${HEIGHT / 2} L ${WIDTH - TIP} ${HEIGHT}` : `H ${WIDTH} V ${HEIGHT}`;
  return `M 0 0 ${right} H 0 ${left} Z`;
}

export class Graph {
  constructor(place, chosen) {
    this.place = place;
    this.chosen = chosen;
    this.structure = "";
  }

  // failing: the uid of the operator that keeps the job from running, "" if none does.
  show(job, selected, failing) {
    const structure = JSON.stringify([
      NARROW.matches,
      job.vertices.map((one) => [one.vertex, one.operators]),
      job.edges.map((one) => [one.source, one.target, one.input, one.side, one.is_back_edge]),
    ]);
    if (structure !== this.structure) {
      this.structure = structure;
      this.draw(job);
    }
    this.update(job, selected, failing);
  }

  draw(job) {
    const { gapAlong, gapBeside, isDown } = this.layout = NARROW.matches ? DOWN : ACROSS;
    const margin = isDown ? 14 : MARGIN;
    const along = (isDown ? HEIGHT : WIDTH) + gapAlong, beside = (isDown ? WIDTH : HEIGHT) + gapBeside;
    const column = columns(job), used = new Map(), at = new Map();
    for (const vertex of job.vertices) {
      const c = column.get(vertex.vertex), b = used.get(c) || 0;
      used.set(c, b + 1);
      const place = [margin + c * along, margin + b * beside];
      at.set(vertex.vertex, isDown ? place.reverse() : place);
    }
    const size = [margin * 2 + Math.max(1, used.size) * along - gapAlong, margin * 2 + Math.max(1, ...used.values()) * beside];
    const [width, height] = isDown ? size.reverse() : size;
    const svg = drawn("svg", { width, height, role: "group", "aria-label": "graph of the job" });
    this.rates = job.edges.map((edge) => this.edge(svg, edge, at, [width, height]));
    this.vertices = new Map(job.vertices.map((vertex) => [vertex.vertex, this.vertex(svg, vertex, at)]));
    // Above the boxes and lines.
    svg.append(...this.rates);
    this.place.replaceChildren(svg);
  }

  edge(svg, edge, at, [width, height]) {
    const [x1, y1] = at.get(edge.source), [x2, y2] = at.get(edge.target), { isDown } = this.layout;
    const from = isDown ? [x1 + WIDTH / 2, y1 + HEIGHT] : [x1 + WIDTH, y1 + HEIGHT / 2];
    const to = isDown ? [x2 + WIDTH / 2, y2] : [x2, y2 + HEIGHT / 2];
    let path, label;
    if (edge.is_back_edge && isDown) {
      const aside = Math.max(x1, x2) + WIDTH + 18;
      path = `M ${from} C ${aside + 10} ${from[1] + 60}, ${aside + 10} ${to[1] - 60}, ${to}`;
      label = { x: Math.min(aside, width - 6), y: (from[1] + to[1]) / 2, "text-anchor": "end" };
    } else if (edge.is_back_edge) {
      const below = Math.max(y1, y2) + HEIGHT + 18;
      path = `M ${from} C ${from[0] + 60} ${below + 10}, ${to[0] - 60} ${below + 10}, ${to}`;
      label = { x: (from[0] + to[0]) / 2, y: Math.min(below, height - 6) };
    } else if (isDown) {
      const bend = Math.max(24, (to[1] - from[1]) / 2);
      path = `M ${from} C ${from[0]} ${from[1] + bend}, ${to[0]} ${to[1] - bend}, ${to}`;
      label = { x: (from[0] + to[0]) / 2 + 8, y: (from[1] + to[1]) / 2 + 4, "text-anchor": "start" };
    } else {
      const bend = Math.max(40, (to[0] - from[0]) / 2);
      path = `M ${from} C ${from[0] + bend} ${from[1]}, ${to[0] - bend} ${to[1]}, ${to}`;
      label = { x: (from[0] + to[0]) / 2, y: (from[1] + to[1]) / 2 - 8 };
    }
    const line = drawn("path", { d: path, class: edge.is_back_edge ? "edge back" : "edge" });
    line.append(drawn("title", {}, `${edge.source} to ${edge.target}${edge.is_back_edge ? ", a back edge" : ""}`));
    svg.append(line);
    svg.append(drawn("path", { d: `M ${to} l ${isDown ? "-4 -8 l 8 0" : "-8 -4 l 0 8"} z`, class: "arrow" }));
    return drawn("text", { "text-anchor": "middle", ...label, class: "small rate" });
  }

  vertex(svg, vertex, at) {
    const [x, y] = at.get(vertex.vertex), chain = chainOf(vertex);
    const group = drawn("g", { class: "vertex", tabindex: 0, role: "button", transform: `translate(${x} ${y})` });
    group.append(drawn("path", { class: "box", d: outline(vertex) }));
    group.append(drawn("text", { x: 14, y: 18, class: "title" }, shortened(vertexName(vertex), 28)));
    group.append(drawn("text", { x: 14, y: 34, class: "small" }, shortened(chain, 33)));
    // Two columns of three numbers, each with its label.
    const cells = [0, 1, 2, 3, 4, 5].map((index) => {
      const left = index % 2 ? 116 : 14, line = 51 + 15 * Math.floor(index / 2);
      return ["label", "value"].map((kind) => group.appendChild(drawn("text", {
        x: kind === "label" ? left : left + 92, y: line, class: `small ${kind}`,
        "text-anchor": kind === "label" ? "start" : "end" })));
    });
    const tag = group.appendChild(drawn("text", { x: WIDTH - 14, y: -5, class: "small tag", "text-anchor": "end" }));
    const bars = ["busy", "blocked", "waiting"].map((kind) =>
      group.appendChild(drawn("rect", { class: kind, y: 92, height: 10, x: 14, width: 0 })));
    const ways = ["ahead", "arrived", "frozen", "stored"].map((kind) =>
      group.appendChild(drawn("rect", { class: kind, y: 110, height: 5, x: 14, width: WIDTH - 28 })));
    group.append(drawn("title", {}, `${vertexTitle(vertex)}: ${chain}`));
    const choose = () => this.chosen(vertex.vertex);
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose();
      }
    });
    svg.append(group);
    return { group, cells, tag, bars, ways };
  }

  update(job, selected, failing) {
    job.edges.forEach((edge, index) => {
      const side = edge.side ? `${edge.side}: ` : "";
      this.rates[index].textContent = `${side}${count(edge.records_per_second)}/s`;
    });
    const way = Way.underWay(job), hasCulprit = job.vertices.some((one) => one.is_bottleneck);
    for (const vertex of job.vertices) {
      const { group, cells, tag, bars, ways } = this.vertices.get(vertex.vertex);
      const fails = Boolean(failing) && vertex.operators.some(([uid]) => uid === failing);
      const role = fails ? "failed" : vertex.is_bottleneck ? "bottleneck"
        : vertex.is_source ? "source" : vertex.is_sink ? "sink" : "";
      tag.textContent = role;
      group.setAttribute("class", ["vertex", fails ? "failing" : "", vertex.is_bottleneck ? "bottleneck" : "",
        hasCulprit && !vertex.is_bottleneck ? "victim" : "", vertex.vertex === selected ? "chosen" : ""].filter(Boolean).join(" "));
      group.setAttribute("aria-label", `${vertexName(vertex)}: ${count(vertex.records_in_per_second)} records a second, `
        + `${percent(vertex.busy)} busy, ${percent(vertex.blocked)} blocked${role ? `, ${role}` : ""}`);
      const slowest = vertex.is_source ? [] : (vertex.latencies || []).map((one) => one.p99_ms);
      const numbers = [
        ["in", `${count(vertex.records_in_per_second)}/s`],
        ["busy", percent(vertex.busy)],
        ["out", `${count(vertex.records_out_per_second)}/s`],
        ["blocked", percent(vertex.blocked)],
        vertex.state_rows ? ["state", `${count(vertex.state_rows)} rows`] : ["queued", count(vertex.queued_records)],
        vertex.lag !== null ? ["lag", count(vertex.lag)] : slowest.length ? ["latency", duration(Math.max(...slowest))] : ["", ""],
      ];
      cells.forEach(([label, value], index) => {
        [label.textContent, value.textContent] = numbers[index];
      });
      let x = 14;
      [vertex.busy, vertex.blocked, vertex.waiting].forEach((share, index) => {
        const width = share * (WIDTH - 28);
        bars[index].setAttribute("x", x);
        bars[index].setAttribute("width", width);
        x += width;
      });
      // How many of its tasks the barrier of the checkpoint under way has come to, and how far they are.
      const states = way === null ? [] : way.of(vertex.vertex);
      ways.forEach((rect, state) => {
        rect.setAttribute("visibility", way === null ? "hidden" : "visible");
        const reached = states.filter((one) => one >= state).length;
        rect.setAttribute("width", (WIDTH - 28) * (reached / Math.max(1, states.length)));
      });
    }
  }
}
