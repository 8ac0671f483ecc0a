// The page of a job. It asks for the job once a second and shows what it gets.
// Names, records and errors of the job are only ever the content of text nodes: no text becomes markup.

import { Crossing } from "./barrier.js";
import { made, moment } from "./elements.js";
import { Graph } from "./graph.js";
import { ENDED, header, presentError } from "./header.js";
import { Plots } from "./plots.js";
import { allTasks, checkpoints, errors, failovers, letters, logs, others, summaryOf, vertexPanel } from "./sections.js";
import { changed, table } from "./tables.js";
import { Tabs } from "./tabs.js";

const EVERY_MS = 1000, HIDDEN_EVERY_MS = 10000, PATIENCE_MS = 15000, ACTION_PATIENCE_MS = 600000;
const token = decodeURIComponent(location.hash.slice(1));
const find = (id) => document.getElementById(id);
let selected = null, chosenCheckpoint = null, last = null;

const tabs = new Tabs(find("tabs"));
const plots = new Plots(find("plots"));
const crossing = new Crossing(find("way"));
const graph = new Graph(find("graph"), (vertex) => {
  selected = selected === vertex ? null : vertex;
  show(last);
});

function openLog() {
  tabs.open("tab-log");
  find("tab-log").focus();
}

function choose(checkpoint) {
  chosenCheckpoint = chosenCheckpoint === checkpoint ? null : checkpoint;
  show(last);
}

function show(document_) {
  last = document_;
  const { job, series } = document_, summary = job.summary;
  // By the clock of the driver: that of the browser may be another one.
  header(job, summary, document_.age_ms, PATIENCE_MS, openLog);
  summaryOf(job, summary);
  graph.show(job, selected, presentError(job)?.cause.operator || "");
  vertexPanel(job, selected);
  if (changed("plots", series.at_ms[series.at_ms.length - 1] || 0)) plots.show(series);
  crossing.show(job, chosenCheckpoint);
  checkpoints(job, chosenCheckpoint, choose);
  failovers(job);
  errors(job);
  letters(job);
  logs(job);
  allTasks(job);
  others(job, summary, document_.default_settings || {});
  looking(job, document_.can_act);
  find("actions").hidden = !document_.can_act || ENDED.includes(job.status);
  document.body.dataset.at = job.at_ms;
}

function looking(job, can) {
  const uids = can ? job.vertices.filter((one) => one.state_rows).flatMap((one) => one.operators.map(([uid]) => uid)) : [];
  // What can be chosen stays while somebody chooses.
  if (find("looking").hidden) find("looking").hidden = !uids.length;
  find("no-state").hidden = !find("looking").hidden;
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
    const { ok, found } = await post("api/state", { uid: find("look-uid").value, key: find("look-key").value });
    find("looked").textContent = found.said || (found.has_more ? "the first rows of the newest checkpoint" : "the newest checkpoint");
    if (!ok) return;
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

async function post(path, body) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" }, patience: ACTION_PATIENCE_MS });
  return { ok: answer.ok, found: await answer.json() };
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
    const since = last ? `; this is the job at ${moment(last.job.at_ms)}` : "";
    notice(`The driver does not answer${since}. If its program has ended, "crosscut history" shows the job.`);
  }
  setTimeout(look, document.hidden ? HIDDEN_EVERY_MS : EVERY_MS);
}

async function act(path, body) {
  const buttons = find("actions").querySelectorAll("button");
  buttons.forEach((one) => { one.disabled = true; });
  find("said").textContent = "…";
  try {
    find("said").textContent = (await post(path, body)).found.said;
  } catch (error) {
    find("said").textContent = "The driver has not answered.";
  }
  buttons.forEach((one) => { one.disabled = false; });
}

// The directory that has been typed; asks for one, and returns "", if there is none.
function savepointPath() {
  const path = find("savepoint-path").value.trim();
  if (path) return path;
  find("said").textContent = "Type a directory for the savepoint first.";
  find("savepoint-path").focus();
  return "";
}

find("actions").addEventListener("submit", (event) => event.preventDefault());
find("look").addEventListener("submit", (event) => {
  event.preventDefault();
  lookInto();
});
find("checkpoint").addEventListener("click", () => act("api/checkpoint", {}));
find("savepoint").addEventListener("click", () => {
  const path = savepointPath();
  if (path) act("api/savepoint", { path });
});
find("restart").addEventListener("click", () => {
  if (window.confirm("Restart all tasks from the newest checkpoint?")) act("api/restart", {});
});
find("stop-with-savepoint").addEventListener("click", () => {
  const path = savepointPath();
  if (path && window.confirm(`Stop the job with a last checkpoint, and write a savepoint to ${path}?`))
    act("api/stop", { savepoint: path });
});
find("stop").addEventListener("click", () => {
  if (window.confirm("Stop the job with a last checkpoint?")) act("api/stop", {});
});
// Without the last "/" of its address nothing else is found.
if (location.pathname.endsWith("/")) look();
else location.pathname += "/";
