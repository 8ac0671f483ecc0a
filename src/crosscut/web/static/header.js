// What is above the tabs: whether the job is well, its last error, and its numbers in four groups.

import { bytes, count, duration, made, moment, vertexName } from "./elements.js";
import { changed } from "./tables.js";

export const ENDED = ["finished", "stopped", "cancelled", "failed", "fenced"];
const WELL = ["running", "finished", "stopped"], BAD = ["failed", "fenced", "unreadable"];
const find = (id) => document.getElementById(id);

// Of any source to any sink, the longest.
function latency(job) {
  const found = job.vertices.filter((one) => one.is_sink).flatMap((one) => (one.latencies || []).map((each) => each.p99_ms));
  return found.length ? duration(Math.max(...found)) : "–";
}

// By a sample of its rows. Micro-batches report it only with a batch, and a record of an older job has none.
export function inMemory(one) {
  const rows = one.state_keys ?? one.state_rows;
  if (!one.state_memory_bytes) return "–";
  const each = rows ? `, ${bytes(Math.round(one.state_memory_bytes / rows))} a row` : "";
  return `about ${bytes(one.state_memory_bytes)}${each}`;
}

// The newest error, while the job has not recovered from it.
export function presentError(job) {
  const newest = job.errors[job.errors.length - 1];
  if (!newest) return null;
  const flows = job.failovers.some((one) => one.epoch >= newest.epoch && one.flowing_ms !== null);
  return job.status === "failed" || (!ENDED.includes(job.status) && !flows) ? newest : null;
}

export function badgeOf(status) {
  return made("span", status, `badge ${WELL.includes(status) ? "well" : BAD.includes(status) ? "bad" : "changing"}`);
}

function groups(job, summary) {
  const rate = job.vertices.filter((one) => one.is_source).reduce((sum, one) => sum + one.records_in_per_second, 0);
  const delays = job.vertices.map((one) => one.watermark_delay_ms).filter((one) => one !== null);
  const lags = job.vertices.map((one) => one.lag).filter((one) => one !== null);
  const letters = job.vertices.reduce((sum, one) => sum + one.dead_letters, 0);
  const newest = job.checkpoints.findLast((one) => one.outcome === "completed");
  const ended = ENDED.includes(job.status);
  return [
    ["Throughput", [
      ["records a second", count(rate)],
      ["records read", count(summary.records_read)],
      ["latency (99 %)", latency(job)],
      ["lag", lags.length ? `${count(lags.reduce((a, b) => a + b, 0))} records` : "–"],
      ["waiting inside", `${count(summary.queued_records)} records`],
    ]],
    ["Event time", [
      ["watermark delay", delays.length ? duration(Math.max(...delays)) : "–"],
      ["late records", count(summary.late_records), !summary.late_records],
      ...Object.entries(summary.held_splits || {}).map(([vertex, splits]) => (
        ["waits for slower sources", `${vertex}, ${count(splits)} ${splits === 1 ? "split" : "splits"}`])),
    ]],
    ["Checkpoints", [
      ["completed", `${summary.checkpoints_completed}`],
      ["failed", `${summary.checkpoints_failed}`, !summary.checkpoints_failed],
      ["newest took", newest ? duration(newest.duration_ms) : "–"],
      ["uncommitted", `${summary.uncommitted || 0}`, !summary.uncommitted],
      ["state", `${count(summary.state_keys)} rows`],
      ["in memory", inMemory(summary)],
    ]],
    ["Health", [
      ["workers", `${summary.workers.length} of ${job.parallelism}`],
      ["restarts", `${summary.restarts}`, !summary.restarts],
      ["dead letters", count(letters), !letters],
      [ended ? "ran for" : "running for", duration(job.at_ms - job.started_ms)],
      ["since", moment(job.started_ms)],
    ]],
  ];
}

export function header(job, summary, age, patience, openLog) {
  document.title = `${job.name}: ${job.status}`;
  find("name").textContent = job.name;
  const badge = badgeOf(job.status);
  badge.id = "status";
  find("status").replaceWith(badge);
  const slow = job.vertices.find((one) => one.is_bottleneck);
  const hot = job.vertices.find((one) => (one.hot_keys || []).length);
  const seen = age > patience ? `, last seen ${duration(age)} ago` : "";
  find("about").textContent = `epoch ${summary.epoch}${seen}`
    + (slow ? `; ${vertexName(slow)} is the bottleneck` : "")
    + (hot ? `; hot key at ${vertexName(hot)}: ${hot.hot_keys[0].key} has ${percent(hot.hot_keys[0].share)} of its records` : "")
    + (summary.sink_behind ? `; ${summary.sink_behind}` : "");
  lastError(job, openLog);
  find("facts").replaceChildren(...groups(job, summary).map(([title, facts]) => {
    const group = made("section"), list = made("dl");
    group.append(made("h2", title), list);
    list.append(...facts.map(([name, value, isQuiet]) => {
      const pair = made("div", null, isQuiet ? "quiet" : "");
      pair.append(made("dt", name), made("dd", value));
      return pair;
    }));
    return group;
  }));
}

function lastError(job, openLog) {
  const place = find("last-error"), newest = job.errors[job.errors.length - 1], present = presentError(job);
  place.hidden = !newest;
  if (!newest || !changed("last-error", [newest, Boolean(present)])) return;
  const { operator, kind, message } = newest.cause, subject = operator ? `${operator} failed` : "failure";
  const more = made("button", "Details");
  more.type = "button";
  more.addEventListener("click", openLog);
  place.className = present ? "" : "past";
  place.replaceChildren(made("strong", present ? subject : `last error, at ${moment(newest.at_ms)}`),
    ` ${kind}: ${message.slice(0, 300)} `, more);
}
