// The page of the admin port: one stream of events in, tables and a chart out. Text only ever becomes text nodes.
import { Chart } from "./chart.js";

const STEP_S = 5;
const KEPT_S = 1800;
const DOCTOR_MS = 10_000;

const byId = (id) => document.getElementById(id);
const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
const percent = (part, of) => (of > 0 && part !== null ? `${((100 * part) / of).toFixed(1)} %` : "–");
const seconds = (value) => (value === null ? "–" : value < 1 ? `${(1000 * value).toFixed(0)} ms` : `${value.toFixed(2)} s`);
const clock = (timeS) => new Date(timeS * 1000).toLocaleTimeString("en-GB");

let about = { doctor: false, policy: "", shadow: null, version: "", history: [] };
let points = [];
let latest = null;
let paused = false;
let asking = false;
const chart = new Chart(byId("chart"), showRates);

// -- small pieces of document --------------------------------------------------------------------------------------

function element(name, className = "", text = null) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Make `parent` hold one child per item, in order. What has the same key stays the same node, so focus stays too. */
function keep(parent, items, key, make, update) {
  const held = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = held.get(name);
    if (child) held.delete(name);
    else {
      child = make(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const left of held.values()) left.remove();
}

/** A table row with a head cell where `heads` says so; `data-head` names its column on narrow screens. */
function row(table, rowHead) {
  const made = element("tr");
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const cell = element(place === rowHead ? "th" : "td", head.className);
    if (place === rowHead) cell.scope = "row";
    else cell.dataset.head = head.textContent;
    cell.append(element("span"));
    made.append(cell);
  });
  return made;
}

function fill(cell, text, { small = "", tone = "", fraction = undefined } = {}) {
  const box = cell.firstElementChild;
  if (box.children.length === 0) {
    box.append(element("span"), element("span", "track"), element("span", "small"));
    box.children[1].append(element("span"));
    box.children[1].setAttribute("aria-hidden", "true");
  }
  const [word, track, note] = box.children;
  say(word, text);
  word.className = tone ? `word ${tone}` : "";
  track.hidden = fraction === undefined || fraction === null;
  if (!track.hidden) track.firstElementChild.style.width = `${Math.min(100, 100 * fraction)}%`;
  say(note, small);
  note.hidden = !small;
}

// -- replicas ------------------------------------------------------------------------------------------------------

const HEALTH = { open: "good", trial: "mid", starting: "mid", closed: "bad" };
const EXACT = { EXACT: "good", ALIAS: "good", APPROXIMATE: "mid" };

function showReplicas(replicas) {
  const table = byId("replica-table");
  keep(table.tBodies[0], replicas, (one) => one.name, () => row(table, 0), (line, one) => {
    const cells = line.cells;
    fill(cells[0], one.name, { small: one.url });
    const restarts = one.restarts ? `, ${one.restarts} restarts` : "";
    const failures = one.failures ? `, ${whole(one.failures)} failures` : "";
    fill(cells[1], one.state, { tone: HEALTH[one.state] ?? "", small: `${one.usable ? "" : one.reason}${restarts}${failures}`.replace(/^, /, "") });
    fill(cells[2], whole(one.in_flight));
    fill(cells[3], whole(one.pending_prefill_tokens));
    fill(cells[4], `${whole(one.running)} / ${whole(one.waiting)}`);
    fill(cells[5], one.kv_used_fraction === null ? "–" : percent(one.kv_used_fraction, 1), { fraction: one.kv_used_fraction });
    const of = one.capacity_blocks === null ? "" : ` of ${whole(one.capacity_blocks)}`;
    fill(cells[6], `${whole(one.held_blocks)}${of}`, { fraction: one.capacity_blocks ? one.held_blocks / one.capacity_blocks : undefined });
    fill(cells[7], one.standing ?? "–", { tone: one.degraded ? "bad" : (EXACT[one.standing] ?? ""), small: (one.standing_reason ?? "").split("; ")[0] });
    fill(cells[8], whole(one.chosen));
  });
  showRemedies(replicas);
}

/** What would help, once for all replicas that it would help. */
function showRemedies(replicas) {
  const found = new Map();
  for (const { name, standing_reason: reason } of replicas) {
    const [, ...remedy] = (reason ?? "").split("; ");
    if (remedy.length) found.set(remedy.join("; "), [...(found.get(remedy.join("; ")) ?? []), name]);
  }
  keep(byId("remedies"), [...found], ([remedy]) => remedy, () => element("li"), (item, [remedy, names]) => {
    const shown = names.length > 6 ? `${names.slice(0, 6).join(", ")} and ${names.length - 6} more` : names.join(", ");
    say(item, `${shown}: ${remedy}`);
  });
}

// -- hit rates -----------------------------------------------------------------------------------------------------

const ZERO = [0, 0, 0, 0, 0];

/** Sums of one series at a point: `route\nNAME`, `tenant\nNAME`, `replica\nNAME`, or all routes together. */
function sums(hits, series) {
  if (!series) return Object.values(hits.route).reduce((all, one) => all.map((sum, place) => sum + one[place]), ZERO);
  const [kind, name] = series.split("\n");
  return hits[kind]?.[name] ?? ZERO;
}

const minus = (now, before) => now.map((value, place) => value - before[place]);

/** Delivered, predicted and available shares of a difference of sums; null where nothing is known. */
function shares([prompt, available, predicted, reported, delivered]) {
  const share = (part, of) => (of > 0 ? part / of : null);
  return [share(delivered, reported), share(predicted, prompt), share(available, prompt)];
}

/** The last point at least `ageS` before `timeS`; sums of nothing when the router is younger than that. */
function before(timeS, ageS) {
  for (let place = points.length - 1; place >= 0; place -= 1) if (points[place].time_s <= timeS - ageS) return points[place].hits;
  return points.length && points[0].time_s > timeS - ageS && about.history.length >= 360 ? points[0].hits : { route: {}, tenant: {} };
}

function showHits() {
  const { hits } = latest;
  const names = ["route", "tenant", "replica"].flatMap((kind) => Object.keys(hits[kind] ?? {}).filter((name) => kind === "route" || name !== "").map((name) => `${kind}\n${name}`));
  const select = byId("series");
  const chosen = select.value;
  keep(select, ["", ...names], (series) => series, (series) => new Option(series ? series.replace("\n", " ") : "everything", series), () => {});
  select.value = names.includes(chosen) ? chosen : "";
  const windowS = Number(byId("window").value);
  const earlier = windowS ? before(latest.time_s, windowS) : { route: {}, tenant: {} };
  const table = byId("hit-table");
  keep(table.tBodies[0], names, (series) => series, () => row(table, 0), (line, series) => {
    const [kind, name] = series.split("\n");
    const found = minus(sums(hits, series), sums(earlier, series));
    fill(line.cells[0], name || "(none)");
    fill(line.cells[1], kind);
    fill(line.cells[2], whole(found[0]));
    shares(found).forEach((share, place) => fill(line.cells[5 - place], share === null ? "–" : percent(share, 1)));
  });
  showChart(select.value);
}

/** Shares over the thirty seconds before each point. */
function showChart(series) {
  const times = [];
  const lines = [[], [], []];
  for (let place = 1, start = 0; place < points.length; place += 1) {
    while (points[place].time_s - points[start + 1].time_s >= 30) start += 1;
    times.push(points[place].time_s);
    const now = shares(minus(sums(points[place].hits, series), sums(points[start].hits, series)));
    now.forEach((share, line) => lines[line].push(share));
  }
  const empty = !lines.some((line) => line.some((share) => share !== null));
  byId("chart").hidden = empty;
  byId("chart-empty").hidden = !empty;
  if (!empty) chart.show(times, lines);
}

/** The numbers beside the words of the legend: under the pointer, else the last ones. */
function showRates(timeS, [delivered, predicted, available]) {
  const told = { available, predicted, delivered };
  for (const [word, share] of Object.entries(told)) say(byId(`now-${word}`), share === null ? "–" : percent(share, 1));
  say(byId("now-time"), timeS === null ? "" : `at ${clock(timeS)}`);
}

// -- losses, shadow, decisions, doctor -----------------------------------------------------------------------------

const REASONS = {
  workload: "no replica had them",
  load: "left for a less busy replica",
  routing: "the replica that had them could not be chosen",
  stale: "predicted, but not found",
  unreadable: "prompts whose blocks are not known",
};

function showLosses(losses) {
  const found = Object.entries(losses).sort((one, other) => other[1] - one[1]);
  byId("losses").hidden = found.length === 0;
  const most = Math.max(1, ...found.map(([, tokens]) => tokens));
  const table = byId("loss-table");
  keep(table.tBodies[0], found, ([reason]) => reason, () => row(table, 0), (line, [reason, tokens]) => {
    fill(line.cells[0], reason, { small: REASONS[reason] ?? "" });
    fill(line.cells[1], whole(tokens));
    fill(line.cells[2], "", { fraction: tokens / most });
    line.cells[2].querySelector(".track").classList.add("lost");
  });
}

function showShadow(shadow) {
  byId("shadow").hidden = shadow === null;
  if (shadow === null) return;
  const { agreed, differed, failed } = shadow;
  const { live = 0, shadow: other = 0 } = shadow.tokens;
  const by = other < live ? `${whole(live - other)} fewer` : `${whole(other - live)} more`;
  const broke = failed ? ` It failed ${failed === 1 ? "once" : `${whole(failed)} times`}.` : "";
  say(byId("shadow-line"), `${about.shadow} would have chosen another replica for ${whole(differed)} of ${whole(agreed + differed)} requests (${percent(differed, agreed + differed)}); by the index, ${by} prompt tokens would be computed (${percent(Math.abs(live - other), live)}).${broke}`);
}

function decisionNode() {
  const made = element("details");
  const summary = element("summary");
  for (let place = 0; place < 5; place += 1) summary.append(element("span"));
  made.append(summary, element("div", "inside"));
  made.addEventListener("toggle", () => made.open && made.inside && showInside(made));
  return made;
}

function showDecision(node, one) {
  if (node.inside) return; // what has happened does not change
  node.inside = one;
  const [when, where, why, tokens, ended] = node.firstElementChild.children;
  say(when, clock(one.time_s));
  where.append(element("b", "", one.replica), ` ${one.reason}`);
  say(why, `${one.route}${one.tenant ? `, ${one.tenant}` : ""}`);
  const cached = one.delivered_tokens ?? one.predicted_tokens;
  say(tokens, `${whole(cached)} of ${whole(one.prompt_tokens)} tokens ${one.delivered_tokens === null ? "predicted" : "cached"}`);
  say(ended, `${one.outcome === "ok" ? "" : `${one.outcome} (${one.status}), `}first token ${seconds(one.ttft_s)}`);
}

function showInside(node) {
  const one = node.inside;
  const box = node.lastElementChild;
  if (box.children.length) return;
  box.append(element("p", "", `${one.why}.`));
  const told = `${whole(one.available_tokens)} available, ${whole(one.predicted_tokens)} predicted, ${whole(one.delivered_tokens)} delivered of ${whole(one.prompt_tokens)} prompt tokens (${one.basis}); ${one.model || "no model"}, ${one.retries} retries, ${seconds(one.duration_s)} in all.`;
  box.append(element("p", "soft", told));
  const wrap = element("div", "scroll");
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const word of ["replica", "matched tokens", "in flight", "prefill waiting", "cost in tokens"]) {
    const cell = element("th", word === "replica" ? "" : "n", word);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const candidate of one.candidates) {
    const line = body.insertRow();
    const name = element("th", "", candidate.name === one.replica ? `${candidate.name} (chosen)` : candidate.name);
    name.scope = "row";
    line.append(name);
    for (const value of [candidate.matched_tokens, candidate.in_flight, candidate.pending_prefill_tokens, candidate.cost_tokens]) line.append(element("td", "n", whole(value)));
  }
  wrap.append(table);
  box.append(wrap);
  if (one.more_candidates) box.append(element("p", "soft", `and ${one.more_candidates} more`));
}

function showDecisions(decisions) {
  byId("decisions-empty").hidden = decisions.length > 0;
  keep(byId("decisions"), decisions, (one) => `${one.id} ${one.time_s}`, decisionNode, showDecision);
}

function findingText(one) {
  const where = one.path + (one.role ? ` (${one.role})` : "");
  const lost = `${whole(one.lost_tokens)} tokens computed again, ${percent(one.lost_fraction, 1)} of the route's, ${whole(one.lost_tokens_per_hour)} per hour.`;
  return [`${one.breaks ? "Breaks" : "Minor"}: ${one.route}, ${where}, character ${whole(one.offset)}, block ${whole(one.block)}: ${one.what} (${one.sure})`, `${lost} ${one.advice}`];
}

async function askDoctor() {
  if (!about.doctor || asking || paused) return;
  asking = true;
  try {
    const answer = await fetch("doctor");
    const told = await answer.json();
    const findings = told.findings ?? [];
    byId("doctor").hidden = !answer.ok;
    const breaks = findings.filter((one) => one.breaks).length;
    const looked = (told.routes ?? []).reduce((sum, route) => sum + route.looked_at, 0);
    say(byId("doctor-line"), `${breaks > 1 ? `${breaks} places break` : `${breaks ? "1" : "No"} place breaks`} the prefix; ${whole(looked)} prompts looked at.`);
    keep(byId("findings"), findings, (one) => [one.route, one.path, one.what].join("\n"), () => {
      const item = element("li");
      item.append(element("b"), element("span"));
      return item;
    }, (item, one) => findingText(one).forEach((text, place) => say(item.children[place], text)));
  } catch {
    byId("doctor").hidden = true;
  }
  asking = false;
}

// -- the stream ----------------------------------------------------------------------------------------------------

function show() {
  const { replicas } = latest;
  say(byId("figure-replicas"), `${replicas.filter((one) => one.usable).length} of ${replicas.length}`);
  say(byId("figure-in-flight"), whole(replicas.reduce((sum, one) => sum + (one.in_flight ?? 0), 0)));
  say(byId("figure-requests"), whole(latest.requests));
  say(byId("figure-refused"), whole(latest.refused));
  say(byId("figure-retries"), whole(latest.retries));
  say(byId("figure-failures"), whole(latest.policy_failures));
  showReplicas(replicas);
  showHits();
  showLosses(latest.losses);
  showShadow(latest.shadow);
  showDecisions(latest.decisions);
}

function state(word, text) {
  byId("live").dataset.state = word;
  say(byId("live"), text);
}

const stream = new EventSource("events");
stream.addEventListener("hello", (event) => {
  about = JSON.parse(event.data);
  points = about.history;
  say(byId("about"), `version ${about.version}, policy ${about.policy}${about.shadow ? `, shadow ${about.shadow}` : ""}`);
  askDoctor();
});
stream.addEventListener("snapshot", (event) => {
  latest = JSON.parse(event.data);
  const last = points.at(-1);
  if (!last || latest.time_s - last.time_s >= STEP_S) points.push({ time_s: latest.time_s, hits: latest.hits });
  while (points.length && points[0].time_s < latest.time_s - KEPT_S - STEP_S) points.shift();
  if (paused) return;
  state("live", "live");
  show();
});
stream.addEventListener("error", () => state("lost", stream.readyState === EventSource.CLOSED ? "refused; reload to try again" : "connection lost; trying again"));

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  state(paused ? "paused" : "live", paused ? "paused" : "live");
  if (!paused && latest) show();
});
for (const id of ["series", "window"]) byId(id).addEventListener("change", () => latest && showHits());
setInterval(askDoctor, DOCTOR_MS);
