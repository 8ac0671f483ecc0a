// The jobs of a store, each with a link to its page.

import { count, duration, made, moment } from "./elements.js";
import { badgeOf } from "./header.js";
import { table } from "./tables.js";

const EVERY_MS = 5000, PATIENCE_MS = 15000;
const token = decodeURIComponent(location.hash.slice(1));
const find = (id) => document.getElementById(id);

function link(job) {
  const found = made("a", job.directory);
  found.href = `jobs/${encodeURIComponent(job.directory)}/#${encodeURIComponent(token)}`;
  return found;
}

function show({ store, jobs, has_more }) {
  find("store").textContent = `Jobs in ${store}`;
  table("jobs", [
    ["directory", link],
    ["job", (one) => one.name],
    ["status", (one) => badgeOf(one.status)],
    ["last seen", (one) => `${duration(one.age_ms)} ago`, "number"],
    ["since", (one) => moment(one.started_ms)],
    ["records a second", (one) => count(one.records_per_second), "number"],
    ["records read", (one) => count(one.records_read), "number"],
    ["checkpoints", (one) => count(one.checkpoints_completed), "number"],
    ["restarts", (one) => count(one.restarts), "number"],
    ["last error", (one) => one.last_error, "text"],
  ], jobs, "there is no job here yet");
  notice(has_more ? `Only the first ${jobs.length} directories are shown.` : "");
}

function notice(text) {
  find("notice").hidden = !text;
  find("notice").textContent = text;
}

async function look() {
  try {
    const answer = await fetch("api/jobs", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS) });
    const found = await answer.json();
    if (answer.ok) show(found);
    else notice(found.said || `the server has answered ${answer.status}`);
  } catch (error) {
    notice("The server does not answer.");
  }
  setTimeout(look, EVERY_MS);
}

look();
