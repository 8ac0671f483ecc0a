// The page of a job. It asks for the job once a second and shows what it gets.
// Names, records and errors of the job are only ever the content of text nodes: no text becomes markup.

import { Crossing } from "./barrier.js";
import { bytes, count, drawn, duration, made, moment, percent, taskName, vertexName, vertexTitle } from "./elements.js";
import { Graph } from "./graph.js";
import { plotsOf } from "./plots.js";

const EVERY_MS = 1000, HIDDEN_EVERY_MS = 10000, PATIENCE_MS = 15000;
const token = decodeURIComponent(location.hash.slice(1));
const find = (id) => document.getElementById(id);
const shownOf = new Map();
let selected = null, chosenCheckpoint = null, last = null;

// What has not changed stays as it is, with what the user has opened, selected or scrolled in it.
function changed(id, data) {
  const text = JSON.stringify(data);
  if (shownOf.get(id) === text) return false;
  shownOf.set(id, text);
  return true;
}

// Columns: title, a function of the row that returns a text or an element, and "number" or "text".
function table(id, columns, rows, nothing, classOf = () => "") {
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
  // Rows that stay are not touched: who presses a button in one meanwhile has pressed it.
  const stay = new Set(lines.values());
  for (const line of [...body.rows]) if (!stay.has(line)) line.remove();
  let next = body.firstChild;
  for (const line of stay) {
    if (line === next) next = next.nextSibling;
    else body.insertBefore(line, next);
  }
  if (focused && document.activeElement.id !== focused) find(focused)?.focus();
}

// The rows of each table, by what they show.
const linesOf = new WeakMap();

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

// From any source to any sink, the longest.
function latency(job) {
  const found = job.vertices.filter((one) => one.is_sink).flatMap((one) => (one.latencies || []).map((each) => each.p99_ms));
  return found.length ? duration(Math.max(...found)) : "–";
}

function latencies(vertex) {
  const list = made("p", (vertex.latencies || []).length ? "latency of late: " : "");
  list.id = "latencies";
  list.append((vertex.latencies || []).map((one) =>
    `from ${one.source} half within ${duration(one.p50_ms)}, 99 % within ${duration(one.p99_ms)}`).join("; "));
  return list;
}

// By a sample of its rows. Micro-batches say nothing of it between two batches, and what is kept of an older job has none.
function inMemory(one) {
  const rows = one.state_keys ?? one.state_rows;
  if (!one.state_memory_bytes) return "–";
  const each = rows ? `, ${bytes(Math.round(one.state_memory_bytes / rows))} a row` : "";
  return `about ${bytes(one.state_memory_bytes)}${each}`;
}

function header(job, summary, age) {
  document.title = `${job.name}: ${job.status}`;
  find("name").textContent = job.name;
  const slow = job.vertices.find((one) => one.is_bottleneck);
  const seen = age > PATIENCE_MS ? `, last seen ${duration(age)} ago` : "";
  find("headline").textContent = `${job.status}, epoch ${summary.epoch}${seen}`
    + (slow ? `; ${vertexName(slow)} is the bottleneck` : "")
    + (summary.sink_behind ? `; ${summary.sink_behind}` : "");
  const rate = job.vertices.filter((one) => one.is_source).reduce((sum, one) => sum + one.records_in_per_second, 0);
  const delays = job.vertices.map((one) => one.watermark_delay_ms).filter((one) => one !== null);
  const lags = job.vertices.map((one) => one.lag).filter((one) => one !== null);
  const facts = [
    ["records read", count(summary.records_read)],
    ["records a second", count(rate)],
    ["lag", lags.length ? `${count(lags.reduce((a, b) => a + b, 0))} records` : "–"],
    ["watermark delay", delays.length ? duration(Math.max(...delays)) : "–"],
    ["latency (99 %)", latency(job)],
    ["state", `${count(summary.state_keys)} rows`],
    ["in memory", inMemory(summary)],
    ["waiting inside", `${count(summary.queued_records)} records`],
    ["late", count(summary.late_records)],
    ["dead letters", count(job.vertices.reduce((sum, one) => sum + one.dead_letters, 0))],
    ["checkpoints", `${summary.checkpoints_completed}, ${summary.checkpoints_failed} failed`
      + (summary.uncommitted ? `, ${summary.uncommitted} uncommitted` : "")],
    ...Object.entries(summary.held_splits || {}).map(([vertex, splits]) => (
      ["waits for slower sources", `${vertex}, ${count(splits)} ${splits === 1 ? "split" : "splits"}`])),
    ["restarts", `${summary.restarts}`],
    ["workers", `${summary.workers.length} of ${job.parallelism}`],
    ["running since", moment(job.started_ms)],
  ];
  find("facts").replaceChildren(...facts.map(([name, value]) => {
    const pair = made("div");
    pair.append(made("dt", name), made("dd", value));
    return pair;
  }));
}

function vertexPanel(job) {
  const place = find("vertex"), vertex = job.vertices.find((one) => one.vertex === selected);
  place.hidden = !vertex;
  if (!vertex) return;
  const tasks = job.tasks.filter((one) => one.task.vertex === selected);
  if (!changed("vertex", [vertex, tasks])) return;
  const scrolls = made("div", null, "scrolls"), grid = made("table");
  grid.id = "tasks";
  scrolls.append(grid);
  place.replaceChildren(made("h3", `Tasks of ${vertexTitle(vertex)}`), latencies(vertex), scrolls);
  table("tasks", [
    ["task", (one) => `${one.task.index}`, "number"],
    ["in/s", (one) => count(one.rates.records_in_per_second), "number"],
    ["out/s", (one) => count(one.rates.records_out_per_second), "number"],
    ["busy", (one) => percent(one.rates.busy), "number"],
    ["blocked", (one) => percent(one.rates.blocked), "number"],
    ["queued", (one) => count(one.queued_records), "number"],
    ["spilled", (one) => bytes(one.spilled_bytes), "number"],
    ["rows", (one) => count(one.state_rows), "number"],
    ["state", (one) => bytes(one.state_bytes), "number"],
    ["in memory", inMemory, "number"],
    ["timers", (one) => count(one.timers), "number"],
    ["watermark delay", (one) => duration(one.watermark_delay_ms), "number"],
    ["held up by", (one) => one.held_up_by, "text"],
    ["lag", (one) => count(one.lag), "number"],
    ["late", (one) => count(one.totals.late_records), "number"],
    ["dead letters", (one) => count(one.totals.dead_letters), "number"],
  ], tasks, "no task has reported yet");
}

function plots(series) {
  if (changed("plots", series.at_ms[series.at_ms.length - 1] || 0)) find("plots").replaceChildren(...plotsOf(series));
}

function split(one) {
  const parts = [["alignment", one.alignment_ms], ["freeze", one.freeze_ms], ["store", one.store_ms],
    ["append", one.append_ms], ["commit", one.commit_ms || 0]];
  const whole = Math.max(1e-6, parts.reduce((sum, [, ms]) => sum + ms, 0));
  const svg = drawn("svg", { width: 120, height: 12, role: "img",
    "aria-label": parts.map(([name, ms]) => `${name} ${duration(ms)}`).join(", ") });
  let x = 0;
  for (const [name, ms] of parts) {
    const width = (120 * ms) / whole;
    svg.append(drawn("rect", { class: name, x, width, y: 0, height: 12 }));
    x += width;
  }
  return svg;
}

function checkpoints(job) {
  if (!changed("checkpoints", [job.checkpoints, chosenCheckpoint])) return;
  const choose = (one) => {
    if (!one.tasks.length) return `${one.checkpoint_id}`;
    const button = made("button", `${one.checkpoint_id}`);
    button.type = "button";
    button.id = `checkpoint-${one.checkpoint_id}`;
    button.addEventListener("click", () => {
      chosenCheckpoint = chosenCheckpoint === one.checkpoint_id ? null : one.checkpoint_id;
      show(last);
    });
    return button;
  };
  table("checkpoints", [
    ["", choose, "number"],
    ["epoch", (one) => `${one.epoch}`, "number"],
    ["triggered", (one) => moment(one.began_ms)],
    ["", (one) => (one.outcome === "under way" ? `${one.acknowledged} tasks` : one.is_final ? "final" : one.outcome)],
    ["duration", (one) => duration(one.duration_ms), "number"],
    ["alignment", (one) => duration(one.alignment_ms), "number"],
    ["freeze", (one) => duration(one.freeze_ms), "number"],
    ["store", (one) => duration(one.store_ms), "number"],
    ["append", (one) => duration(one.append_ms), "number"],
    ["commit", (one) => duration(one.commit_ms), "number"],
    ["", split],
    ["new", (one) => bytes(one.new_bytes), "number"],
    ["state", (one) => bytes(one.state_bytes), "number"],
    ["last", (one) => taskName(one.last)],
    ["", (one) => one.reason, "text"],
  ], [...job.checkpoints].reverse(), "none yet", (one) => (one.outcome === "failed" ? "failed" : ""));
}

function failovers(job) {
  if (!changed("failovers", job.failovers)) return;
  table("failovers", [
    ["epoch", (one) => `${one.epoch}`, "number"],
    ["noticed", (one) => moment(one.noticed_ms)],
    ["claimed", (one) => duration(one.claimed_ms), "number"],
    ["deployed", (one) => duration(one.deployed_ms), "number"],
    ["started", (one) => duration(one.started_ms), "number"],
    ["records flow", (one) => duration(one.flowing_ms), "number"],
    ["back to", (one) => (one.restores === null ? "–" : one.restores ? `checkpoint ${one.restores}` : "the beginning")],
    ["cause", (one) => one.cause.message, "text"],
  ], [...job.failovers].reverse(), "none");
}

function errors(job) {
  if (!changed("errors", job.errors)) return;
  const place = find("errors");
  if (!job.errors.length) {
    place.replaceChildren(made("p", "none", "empty"));
    return;
  }
  place.replaceChildren(...[...job.errors].reverse().map((one) => {
    const details = made("details"), cause = one.cause;
    details.append(made("summary", `${moment(one.at_ms)}, epoch ${one.epoch}: ${cause.kind}: ${cause.message}`));
    if (cause.operator) details.append(made("p", `operator: ${cause.operator}`));
    if (cause.record) details.append(made("p", `record: ${cause.record}`));
    if (cause.traceback) details.append(made("pre", cause.traceback));
    return details;
  }));
}

function letters(job) {
  if (!changed("letters", job.dead_letters || [])) return;
  table("letters", [
    ["heard of", (one) => moment(one.at_ms)],
    ["task", (one) => taskName(one.task)],
    ["operator", (one) => one.letter.operator],
    ["record", (one) => (one.letter.timer === null ? one.letter.record : `the timer of ${one.letter.timer}`), "text"],
    ["key", (one) => one.letter.key, "text"],
    ["error", (one) => one.letter.error, "text"],
  ], [...(job.dead_letters || [])].reverse(), "none");
}

function logs(job) {
  if (!changed("logs", job.logs || [])) return;
  table("logs", [
    ["logged", (one) => moment(one.at_ms)],
    ["level", (one) => one.level],
    ["task", (one) => (one.task ? taskName(one.task) : `worker ${one.worker}`)],
    ["epoch", (one) => (one.task ? `${one.epoch}` : "–"), "number"],
    ["checkpoint", (one) => (one.checkpoint_id ? `${one.checkpoint_id}` : "–"), "number"],
    ["logger", (one) => one.logger],
    ["", (one) => one.text, "text"],
  ], [...(job.logs || [])].reverse(), "none");
}

function others(job, summary) {
  const readings = new Map();
  for (const task of job.tasks) {
    for (const one of task.readings) {
      const key = JSON.stringify([one.operator, one.name, one.kind]);
      const known = readings.get(key) || { ...one, value: 0, observed: 0 };
      known.value += one.value;
      known.observed += one.counts.reduce((sum, more) => sum + more, 0);
      readings.set(key, known);
    }
  }
  const rows = [...readings.values()];
  find("h-user").parentElement.hidden = !rows.length;
  if (changed("user", rows)) table("user", [
    ["operator", (one) => one.operator],
    ["name", (one) => one.name],
    ["kind", (one) => one.kind],
    ["value", (one) => (one.kind === "histogram"
      ? `${count(one.observed)} observed, ${count(one.observed ? one.value / one.observed : 0)} on average`
      : count(one.value)), "number"],
  ], rows, "none");
  if (changed("workers", summary.workers)) table("workers", [
    ["worker", (one) => `${one.index}`, "number"],
    ["host", (one) => one.host],
    ["pid", (one) => `${one.pid}`, "number"],
    ["epoch", (one) => `${one.epoch}`, "number"],
  ], summary.workers, "none");
  if (changed("settings", job.settings)) table("settings", [
    ["setting", ([name]) => name],
    ["value", ([, value]) => value, "text"],
  ], Object.entries(job.settings), "none");
}

const graph = new Graph(find("graph"), (vertex) => {
  selected = selected === vertex ? null : vertex;
  show(last);
});

const crossing = new Crossing(find("way"));

function show(document_) {
  last = document_;
  const { job, series } = document_, summary = job.summary;
  // By the clock of the driver: that of the browser may be another one.
  header(job, summary, document_.age_ms);
  graph.show(job, selected);
  vertexPanel(job);
  plots(series);
  crossing.show(job, chosenCheckpoint);
  checkpoints(job);
  failovers(job);
  errors(job);
  letters(job);
  logs(job);
  others(job, summary);
  looking(job, document_.can_act);
  const ended = ["finished", "stopped", "cancelled", "failed", "fenced"].includes(job.status);
  find("actions").hidden = !document_.can_act || ended;
  document.body.dataset.at = job.at_ms;
}

function looking(job, can) {
  const uids = can ? job.vertices.filter((one) => one.state_rows).flatMap((one) => one.operators.map(([uid]) => uid)) : [];
  // What can be chosen stays while somebody chooses.
  if (find("looking").hidden) find("looking").hidden = !uids.length;
  if (!uids.length || !changed("look-uid", uids)) return;
  const chosen = find("look-uid").value;
  find("look-uid").replaceChildren(...uids.map((uid) => {
    const option = made("option", uid);
    option.value = uid;
    return option;
  }));
  if (uids.includes(chosen)) find("look-uid").value = chosen;
}

async function lookInto() {
  find("looked").textContent = "…";
  try {
    const answer = await ask("api/state", { method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ uid: find("look-uid").value, key: find("look-key").value }), patience: 600000 });
    const found = await answer.json();
    find("looked").textContent = found.said || (found.has_more ? "the first rows of the newest checkpoint" : "the newest checkpoint");
    if (!answer.ok) return;
    table("state", [
      ["state", ([state]) => state],
      ["key", ([, key]) => key, "text"],
      ["name", ([, , name]) => name, "text"],
      ["value", ([, , , value]) => value, "text"],
    ], found.rows, "nothing");
  } catch (error) {
    find("looked").textContent = "The driver has not answered.";
  }
}

function notice(text) {
  find("notice").hidden = !text;
  find("notice").textContent = text;
}

async function ask(path, options = {}) {
  const headers = { Authorization: `Bearer ${token}`, ...(options.headers || {}) };
  return fetch(path, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(options.patience || PATIENCE_MS) });
}

async function look() {
  try {
    const answer = await ask("api/job");
    const found = await answer.json();
    if (answer.ok) {
      notice("");
      show(found);
    } else {
      notice(found.said || `the driver has answered ${answer.status}`);
    }
  } catch (error) {
    const since = last ? `; what is shown is of ${moment(last.job.at_ms)}` : "";
    notice(`The driver does not answer${since}. If its program has ended, "crosscut history" shows the job.`);
  }
  setTimeout(look, document.hidden ? HIDDEN_EVERY_MS : EVERY_MS);
}

async function act(path, body) {
  const buttons = find("actions").querySelectorAll("button");
  buttons.forEach((one) => { one.disabled = true; });
  find("said").textContent = "…";
  try {
    const answer = await ask(path, { method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" }, patience: 600000 });
    const found = await answer.json();
    find("said").textContent = found.said;
  } catch (error) {
    find("said").textContent = "The driver has not answered.";
  }
  buttons.forEach((one) => { one.disabled = false; });
}

find("actions").addEventListener("submit", (event) => event.preventDefault());
find("look").addEventListener("submit", (event) => {
  event.preventDefault();
  lookInto();
});
find("checkpoint").addEventListener("click", () => act("api/checkpoint", {}));
find("savepoint").addEventListener("click", () => act("api/savepoint", { path: find("savepoint-path").value }));
find("restart").addEventListener("click", () => {
  if (window.confirm("Go back to the newest checkpoint, with all tasks made anew?")) act("api/restart", {});
});
find("stop").addEventListener("click", () => {
  if (window.confirm("Stop the job, with a last checkpoint?")) act("api/stop", {});
});
// Without the last "/" of its address nothing else is found.
if (location.pathname.endsWith("/")) look();
else location.pathname += "/";
