// The tables of the page: checkpoints, failovers, errors, dead letters, logs, tasks, workers, settings, the summary.

import { ENDED, inMemory, presentError } from "./header.js";
import { bytes, count, drawn, duration, made, moment, percent, taskName, vertexName, vertexTitle } from "./elements.js";
import { changed, table } from "./tables.js";

const find = (id) => document.getElementById(id);
const BAR = 80;

function latencies(vertex) {
  const list = made("p", (vertex.latencies || []).length ? "latency of late: " : "");
  list.id = "latencies";
  list.append((vertex.latencies || []).map((one) =>
    `from ${one.source} half within ${duration(one.p50_ms)}, 99 % within ${duration(one.p99_ms)}`).join("; "));
  return list;
}

// How much more the busiest task gets than a task does on average.
function skew(tasks) {
  const rates = tasks.map((one) => one.rates.records_in_per_second || one.rates.records_out_per_second);
  const most = Math.max(0, ...rates), mean = rates.reduce((a, b) => a + b, 0) / Math.max(1, rates.length);
  const text = tasks.length > 1 && mean > 0 ? `skew: the busiest task gets ${(most / mean).toFixed(1)} times the mean` : "";
  return { most, mean, text };
}

const hotKeys = (vertex) => (vertex.hot_keys || [])
  .map((one) => `hot key ${one.key}: ${percent(one.share)} of the records of late`).join("; ");

function bar(rate, { most, mean }) {
  const svg = drawn("svg", { width: BAR, height: 12, role: "img", "aria-label": `${count(rate)}/s, ${count(mean)}/s on average` });
  const x = (value) => (most > 0 ? (BAR * value) / most : 0);
  svg.append(drawn("rect", { class: "share", x: 0, y: 1, height: 10, width: x(rate) }));
  svg.append(drawn("line", { class: "mean", x1: x(mean), x2: x(mean), y1: 0, y2: 12 }));
  return svg;
}

const TASK_COLUMNS = [
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
];

export function vertexPanel(job, selected) {
  const place = find("vertex"), vertex = job.vertices.find((one) => one.vertex === selected);
  place.hidden = !vertex;
  if (!vertex) return;
  const tasks = job.tasks.filter((one) => one.task.vertex === selected);
  if (!changed("vertex", [vertex, tasks])) return;
  const scrolls = made("div", null, "scrolls"), grid = made("table"), found = skew(tasks);
  grid.id = "tasks";
  scrolls.append(grid);
  place.replaceChildren(made("h3", `Tasks of ${vertexTitle(vertex)}`), latencies(vertex), made("p", found.text),
    made("p", hotKeys(vertex)), scrolls);
  table("tasks", [
    ["task", (one) => `${one.task.index}`, "number"],
    ["", (one) => bar(one.rates.records_in_per_second || one.rates.records_out_per_second, found)],
    ...TASK_COLUMNS,
  ], tasks, "no task has reported yet");
}

export function allTasks(job) {
  if (changed("all-tasks", job.tasks))
    table("all-tasks", [["task", (one) => taskName(one.task)], ...TASK_COLUMNS], job.tasks, "no task has reported yet");
}

export function summaryOf(job, summary) {
  const ended = ENDED.includes(job.status);
  find("summary").hidden = !ended;
  if (!ended || !changed("summary", [job.status, summary, job.vertices])) return;
  find("totals").textContent = `${job.status} after ${duration(job.at_ms - job.started_ms)}: `
    + `${count(summary.records_read)} records read, ${summary.checkpoints_completed} checkpoints `
    + `(${summary.checkpoints_failed} failed), ${summary.restarts} restarts`
    + (summary.cause ? `; ${summary.cause}` : "");
  table("vertex-totals", [
    ["vertex", vertexName],
    ["records in", (one) => count(one.records_in), "number"],
    ["records out", (one) => count(one.records_out), "number"],
    ["late", (one) => count(one.late_records), "number"],
    ["dead letters", (one) => count(one.dead_letters), "number"],
    ["rows of state", (one) => count(one.state_rows), "number"],
  ], job.vertices, "none");
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

export function checkpoints(job, chosen, choose) {
  if (!changed("checkpoints", [job.checkpoints, chosen])) return;
  const number = (one) => {
    if (!one.tasks.length) return `${one.checkpoint_id}`;
    const button = made("button", `${one.checkpoint_id}`);
    button.type = "button";
    button.id = `checkpoint-${one.checkpoint_id}`;
    button.addEventListener("click", () => choose(one.checkpoint_id));
    return button;
  };
  table("checkpoints", [
    ["", number, "number"],
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

export function failovers(job) {
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

export function errors(job) {
  const present = presentError(job);
  if (!changed("errors", [job.errors, present])) return;
  const place = find("errors");
  find("tab-log").textContent = job.errors.length ? `Log (${job.errors.length})` : "Log";
  if (!job.errors.length) {
    place.replaceChildren(made("p", "none", "empty"));
    return;
  }
  place.replaceChildren(...[...job.errors].reverse().map((one) => {
    const details = made("details"), cause = one.cause;
    // What keeps the job from running now is unfolded.
    details.open = one === present;
    details.append(made("summary", `${moment(one.at_ms)}, epoch ${one.epoch}: ${cause.kind}: ${cause.message}`));
    if (cause.operator) details.append(made("p", `operator: ${cause.operator}`));
    if (cause.record) details.append(made("p", `record: ${cause.record}`));
    if (cause.traceback) details.append(made("pre", cause.traceback));
    return details;
  }));
}

export function letters(job) {
  if (!changed("letters", job.dead_letters || [])) return;
  table("letters", [
    ["reported", (one) => moment(one.at_ms)],
    ["task", (one) => taskName(one.task)],
    ["operator", (one) => one.letter.operator],
    ["record", (one) => (one.letter.timer === null ? one.letter.record : `the timer of ${one.letter.timer}`), "text"],
    ["key", (one) => one.letter.key, "text"],
    ["error", (one) => one.letter.error, "text"],
  ], [...(job.dead_letters || [])].reverse(), "none");
}

export function logs(job) {
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

export function others(job, summary, defaults) {
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
  if (!changed("settings", [job.settings, defaults])) return;
  const isOwn = ([name, value]) => name in defaults && defaults[name] !== value;
  const settings = Object.entries(job.settings);
  table("settings", [
    ["setting", ([name]) => name],
    ["value", ([, value]) => value, "text"],
    ["default", (one) => (isOwn(one) ? defaults[one[0]] : ""), "text"],
  ], [...settings.filter(isOwn), ...settings.filter((one) => !isOwn(one))], "none", (one) => (isOwn(one) ? "own" : ""));
}
