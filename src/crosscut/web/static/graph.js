// The graph of the job: drawn once for each structure, and then only its texts and bars are changed.
// Nothing here makes markup of a text: every text is the content of a text node.

import { Way } from "./barrier.js";
import { count, drawn, duration, percent, vertexName, vertexTitle } from "./elements.js";

const WIDTH = 210, HEIGHT = 104, GAP_X = 110, GAP_Y = 26, MARGIN = 40;

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

export class Graph {
  constructor(place, chosen) {
    this.place = place;
    this.chosen = chosen;
    this.structure = "";
  }

  show(job, selected) {
    const structure = JSON.stringify([
      job.vertices.map((one) => [one.vertex, one.operators]),
      job.edges.map((one) => [one.source, one.target, one.input, one.side, one.is_back_edge]),
    ]);
    if (structure !== this.structure) {
      this.structure = structure;
      this.draw(job);
    }
    this.update(job, selected);
  }

  draw(job) {
    const column = columns(job), rows = new Map(), at = new Map();
    for (const vertex of job.vertices) {
      const x = column.get(vertex.vertex), y = rows.get(x) || 0;
      rows.set(x, y + 1);
      at.set(vertex.vertex, [MARGIN + x * (WIDTH + GAP_X), MARGIN + y * (HEIGHT + GAP_Y)]);
    }
    const height = MARGIN * 2 + Math.max(1, ...rows.values()) * (HEIGHT + GAP_Y);
    const width = MARGIN * 2 + Math.max(1, rows.size) * (WIDTH + GAP_X) - GAP_X;
    const svg = drawn("svg", { width, height, role: "group", "aria-label": "graph of the job" });
    this.rates = job.edges.map((edge) => this.edge(svg, edge, at, height));
    this.vertices = new Map(job.vertices.map((vertex) => [vertex.vertex, this.vertex(svg, vertex, at)]));
    this.place.replaceChildren(svg);
  }

  edge(svg, edge, at, height) {
    const [x1, y1] = at.get(edge.source), [x2, y2] = at.get(edge.target);
    const from = [x1 + WIDTH, y1 + HEIGHT / 2], to = [x2, y2 + HEIGHT / 2];
    let path, middle;
    if (edge.is_back_edge) {
      const below = Math.max(y1, y2) + HEIGHT + 18;
      path = `M ${from} C ${from[0] + 60} ${below + 10}, ${to[0] - 60} ${below + 10}, ${to}`;
      middle = [(from[0] + to[0]) / 2, Math.min(below, height - 6)];
    } else {
      const bend = Math.max(40, (to[0] - from[0]) / 2);
      path = `M ${from} C ${from[0] + bend} ${from[1]}, ${to[0] - bend} ${to[1]}, ${to}`;
      middle = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2 - 6];
    }
    const line = drawn("path", { d: path, class: edge.is_back_edge ? "edge back" : "edge" });
    line.append(drawn("title", {}, `${edge.source} to ${edge.target}${edge.is_back_edge ? ", a back edge" : ""}`));
    svg.append(line);
    svg.append(drawn("path", { d: `M ${to} l -8 -4 l 0 8 z`, class: "arrow" }));
    const text = drawn("text", { x: middle[0], y: middle[1], "text-anchor": "middle", class: "small rate" });
    svg.append(text);
    return text;
  }

  vertex(svg, vertex, at) {
    const [x, y] = at.get(vertex.vertex);
    const group = drawn("g", { class: "vertex", tabindex: 0, role: "button", transform: `translate(${x} ${y})` });
    group.append(drawn("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 6 }));
    group.append(drawn("text", { x: 8, y: 18, class: "title" }, shortened(vertexName(vertex), 28)));
    const chain = vertex.operators.map(([uid, kind]) => (uid.endsWith("-" + kind) ? kind : `${uid} (${kind})`));
    group.append(drawn("text", { x: 8, y: 34, class: "small" }, shortened(chain.join(" > "), 31)));
    const lines = [50, 66].map((dy) => group.appendChild(drawn("text", { x: 8, y: dy, class: "small" })));
    const bars = ["busy", "blocked", "waiting"].map((kind) =>
      group.appendChild(drawn("rect", { class: kind, y: 76, height: 10, x: 8, width: 0 })));
    const ways = ["ahead", "arrived", "frozen", "stored"].map((kind) =>
      group.appendChild(drawn("rect", { class: kind, y: 92, height: 5, x: 8, width: WIDTH - 16 })));
    group.append(drawn("title", {}, `${vertexTitle(vertex)}: ${chain.join(" > ")}`));
    const choose = () => this.chosen(vertex.vertex);
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose();
      }
    });
    svg.append(group);
    return { group, lines, bars, ways };
  }

  update(job, selected) {
    job.edges.forEach((edge, index) => {
      const side = edge.side ? `${edge.side}: ` : "";
      this.rates[index].textContent = `${side}${count(edge.records_per_second)}/s`;
    });
    const way = Way.underWay(job);
    for (const vertex of job.vertices) {
      const { group, lines, bars, ways } = this.vertices.get(vertex.vertex);
      group.setAttribute("class", ["vertex", vertex.is_bottleneck ? "bottleneck" : "",
        vertex.vertex === selected ? "chosen" : ""].join(" ").trim());
      group.setAttribute("aria-label", `${vertexName(vertex)}: ${count(vertex.records_in_per_second)} records a second, `
        + `${percent(vertex.busy)} busy, ${percent(vertex.blocked)} blocked${vertex.is_bottleneck ? ", the bottleneck" : ""}`);
      lines[0].textContent = `${count(vertex.records_in_per_second)}/s in, ${count(vertex.records_out_per_second)}/s out`;
      const more = [`busy ${percent(vertex.busy)}`];
      if (vertex.blocked >= 0.005) more.push(`blocked ${percent(vertex.blocked)}`);
      const slowest = vertex.is_source ? [] : (vertex.latencies || []).map((one) => one.p99_ms);
      if (slowest.length) more.push(duration(Math.max(...slowest)));
      if (vertex.state_rows) more.push(`${count(vertex.state_rows)} rows`);
      if (vertex.lag !== null) more.push(`lag ${count(vertex.lag)}`);
      lines[1].textContent = shortened(more.join(", "), 36);
      let x = 8;
      [vertex.busy, vertex.blocked, vertex.waiting].forEach((share, index) => {
        const width = share * (WIDTH - 16);
        bars[index].setAttribute("x", x);
        bars[index].setAttribute("width", width);
        x += width;
      });
      // How many of its tasks the barrier of the checkpoint under way has come to, and how far they are.
      const states = way === null ? [] : way.of(vertex.vertex);
      ways.forEach((rect, state) => {
        rect.setAttribute("visibility", way === null ? "hidden" : "visible");
        const reached = states.filter((one) => one >= state).length;
        rect.setAttribute("width", (WIDTH - 16) * (reached / Math.max(1, states.length)));
      });
    }
  }
}
