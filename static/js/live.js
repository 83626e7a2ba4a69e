// The rows of the live list: fetched by cursor, kept in their places, and none moved under the pointer.
//
// A row keeps its slot until its session no longer fits the filter, or is quiet while newer ones wait. A session that
// comes takes the slot of one that left, or enters at the top where that moves little of the page; others wait behind a
// bar that counts them, and enter one by one. The key . sorts. On a phone, where rows are tall, all wait for a tap.
// Markup: #live[data-rows-url][data-cursor] with [data-live-rows] inside.
import { precise, relative } from "./durations.js";
import { follow, link, noteSignIn } from "./link.js";

const FETCH_GAP_MS = 300;
const RETRY_MS = 2_000;
const STALE_MS = 35_000;
const SLICE_MS = 8;
const CALM_MS = 2_000; // moves this far apart do not add up to one layout shift
const QUIET_MS = 10_000;
const MOST_MOVED = 0.045; // in CALM_MS, as browsers count shifts: the share of the window that moves, times how far

const section = document.getElementById("live");
const body = section?.querySelector("[data-live-rows]") ?? null;
const newBar = document.getElementById("live-new");
const pauseButton = document.getElementById("live-pause");
const indicator = document.getElementById("live-state");
const banner = document.getElementById("live-banner");
const follows = Boolean(section && body) && section.dataset.follow !== "no";

const rows = {
  limit: Number(section?.dataset.rows ?? 50),
  cursor: section?.dataset.cursor ?? "",
  order: null, // the newest, more than are shown; null until the first answer
  held: new Map(), // rows that are not shown yet
  html: new Map(), // of the shown rows, as they came
  isFetching: false,
  wants: false,
  timer: 0,
  moves: [], // of the last seconds
};
const seen = { updatedAt: Date.now(), behindSeconds: null, isLost: false };
let isPaused = false;
let isHandOnTable = false;

function fetchSoon(ms = FETCH_GAP_MS * (0.5 + Math.random() / 2)) {
  if (isPaused || document.hidden) return; // coming back is a resync
  if (rows.isFetching) rows.wants = true;
  else if (!rows.timer) rows.timer = setTimeout(fetchRows, ms);
}

async function fetchRows() {
  rows.timer = 0;
  rows.isFetching = true;
  const startedAt = performance.now();
  try {
    const query = new URLSearchParams(location.search);
    query.delete("cursor");
    query.set("since", rows.cursor);
    const answer = await fetch(`${section.dataset.rowsUrl}?${query}`, {
      headers: { Accept: "application/json" },
      signal: AbortSignal.timeout(10_000),
    });
    noteSignIn(answer);
    if (!answer.ok) throw new Error(`answered ${answer.status}`);
    const changes = await answer.json();
    if (!isPaused) await take(changes); // while paused the cursor stays, so the next fetch has these again
    seen.isLost = false;
    seen.updatedAt = Date.now();
  } catch {
    seen.isLost = true;
  }
  rows.isFetching = false;
  if (seen.isLost) fetchSoon(RETRY_MS * (0.5 + Math.random() / 2));
  else if (rows.wants) {
    rows.wants = false;
    // Where answers take long, the pauses between them do, too.
    fetchSoon(Math.max(FETCH_GAP_MS * (0.5 + Math.random() / 2), performance.now() - startedAt));
  }
  show();
}

async function take(answer) {
  rows.cursor = answer.cursor;
  rows.order = answer.order;
  // A person changes a session without an event: its last one is older than what this page fetched before.
  const sinceUpdate = (Date.now() - seen.updatedAt) / 1000;
  if (answer.behind_seconds !== null && answer.behind_seconds < sinceUpdate) seen.behindSeconds = answer.behind_seconds;
  const wanted = new Set(answer.order);
  for (const row of body.children) row.classList.toggle("is-gone", !wanted.has(row.id));
  let sliceEnd = performance.now() + SLICE_MS;
  let hasChanged = false;
  for (const { id, html } of answer.rows) {
    const shown = document.getElementById(id);
    if (!shown) rows.held.set(id, html);
    else if (rows.html.get(id) !== html) {
      patch(shown, html);
      hasChanged = true;
    }
    if (performance.now() > sliceEnd) {
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      sliceEnd = performance.now() + SLICE_MS;
    }
  }
  for (const id of rows.held.keys()) if (!wanted.has(id)) rows.held.delete(id);
  // A session becomes idle by the clock alone, without a change at the cursor.
  const isOutdated = answer.order.some((id, place) => {
    const row = document.getElementById(id);
    return row && row.dataset.state !== answer.states[place];
  });
  if (isOutdated && !answer.reset) {
    rows.cursor = "";
    rows.wants = true;
  }
  if (!isHandOnTable) settle(false);
  if (hasChanged) document.dispatchEvent(new CustomEvent("loopguard:rows"));
  showBar();
}

/** The sessions that belong on the page and are not shown. */
function waiting() {
  return rows.order ? rows.order.slice(0, rows.limit).filter((id) => !document.getElementById(id)) : [];
}

/** Show the rows that came and remove those that left: as far as they fit calmly, or all in order if `isWhole`. */
function settle(isWhole) {
  const shown = [...body.children].map((row) => row.id);
  let fresh = waiting();
  const coming = areTall() ? 0 : fresh.length;
  const keeps = isWhole ? new Set(rows.order.slice(0, rows.limit)) : stays([...body.children], coming);
  const kept = shown.filter((id) => keeps.has(id));
  fresh = fresh.slice(0, rows.limit - kept.length);
  if (fresh.some((id) => !rows.held.has(id))) {
    rows.cursor = ""; // a row came that did not change meanwhile
    fetchSoon();
    return;
  }
  let after = [...fresh, ...kept];
  if (isWhole) after = inOrder(after);
  else if (!mayMove(shown, after)) after = inSlots(shown, keeps, fresh);
  const made = after.filter((id) => rows.held.has(id)).map(make);
  if (after.length !== shown.length || after.some((id, place) => id !== shown[place])) place(after, made);
  const empty = document.getElementById("live-empty");
  if (empty) empty.hidden = body.children.length > 0;
  if (!made.length) return;
  document.dispatchEvent(new CustomEvent("loopguard:new-sessions", { detail: made.length }));
  setTimeout(() => made.forEach((row) => row.classList.remove("is-new")), 4_000);
}

function inOrder(ids) {
  const wanted = new Set(ids);
  return rows.order.filter((id) => wanted.has(id));
}

function make(id) {
  const row = rowOf(rows.held.get(id));
  row.classList.add("is-new");
  rows.html.set(id, rows.held.get(id));
  rows.held.delete(id);
  return row;
}

/** The ids of the shown rows that stay while `coming` others wait: a quiet one that is no longer on the page goes. */
function stays(shown, coming) {
  const ranks = new Map(rows.order.map((id, rank) => [id, rank]));
  const listed = shown.filter((row) => ranks.has(row.id)).sort((a, b) => ranks.get(a.id) - ranks.get(b.id));
  const at = (row) => Date.parse(row.dataset.at);
  const newest = Math.max(...listed.map(at));
  let free = rows.limit - listed.length;
  while (free < coming && listed.length) {
    const last = listed.at(-1);
    if (ranks.get(last.id) < rows.limit || newest - at(last) < QUIET_MS) break;
    listed.pop();
    free += 1;
  }
  return new Set(listed.map((row) => row.id));
}

/** Whether rows are too tall for one to enter at the top: then none takes a slot out of sight either. */
function areTall() {
  return (body.children[0]?.offsetHeight ?? 0) / Math.max(innerWidth, innerHeight) > MOST_MOVED;
}

/** Whether the rows that stay may move to their new places now, without too much movement for the reader. */
function mayMove(before, after) {
  const places = new Map(after.map((id, place) => [id, place]));
  const steps = before.map((id, place) => (places.has(id) ? Math.abs(places.get(id) - place) : 0));
  const most = Math.max(0, ...steps);
  if (most === 0) return true;
  const height = body.children[0]?.offsetHeight ?? 0;
  const { top } = body.getBoundingClientRect();
  const first = Math.max(0, top + height * steps.findIndex(Boolean));
  const last = Math.min(innerHeight, top + height * (before.length + most));
  const share = Math.max(0, last - first) / innerHeight;
  const movement = (share * height * most) / Math.max(innerWidth, innerHeight);
  const now = Date.now();
  rows.moves = rows.moves.filter((move) => now - move.at < CALM_MS);
  if (rows.moves.reduce((sum, move) => sum + move.movement, movement) > MOST_MOVED) return false;
  rows.moves.push({ at: now, movement });
  return true;
}

/** Put new rows where others left; the rest waits. When rows may move, one enters or an empty slot closes. */
function inSlots(shown, keeps, fresh) {
  const coming = [...fresh];
  const after = shown.map((id) => (keeps.has(id) ? id : (coming.pop() ?? id)));
  const isEmpty = (id) => shown.includes(id) && !keeps.has(id);
  while (after.length && isEmpty(after.at(-1))) after.pop();
  const left = after.findLastIndex(isEmpty);
  const calm = left < 0 ? [...coming.slice(-1), ...after] : after.toSpliced(left, 1);
  return mayMove(after, calm) ? calm : after;
}

function place(after, made) {
  const rowsById = new Map([...body.children, ...made].map((row) => [row.id, row]));
  const shown = [...body.children];
  const stays = new Set(after);
  shown.forEach((row, index) => {
    if (stays.has(row.id)) return;
    rows.html.delete(row.id);
    const next = rowsById.get(after[index]);
    if (next && !next.isConnected) row.replaceWith(next);
    else row.remove();
  });
  after.forEach((id, index) => {
    const row = rowsById.get(id);
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
  });
  document.dispatchEvent(new CustomEvent("loopguard:rows"));
}

function rowOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

/** Take over what differs, cell by cell, so that focus, selection and a ticked box stay where they are. */
function patch(row, html) {
  const next = rowOf(html);
  rows.html.set(row.id, html);
  for (const { name, value } of next.attributes)
    if (name !== "class" && row.getAttribute(name) !== value) row.setAttribute(name, value);
  [...next.children].forEach((cell, index) => {
    const old = row.children[index];
    if (!old || old.querySelector("input")) return;
    if (old.contains(document.activeElement)) {
      rows.html.delete(row.id); // not all of it is shown
      return;
    }
    if (old.innerHTML !== cell.innerHTML) old.replaceChildren(...cell.childNodes);
  });
}

function showBar() {
  if (!newBar) return;
  const count = waiting().length;
  newBar.hidden = count === 0;
  const keys =
    document.documentElement.dataset.shortcuts !== "off" && matchMedia("(hover: hover) and (min-width: 861px)").matches;
  write(newBar, keys ? `${count} newer \u2013 press . to show` : `Show ${count} newer`);
}

function show() {
  const age = Date.now() - seen.updatedAt;
  const isDown = seen.isLost || age > STALE_MS;
  let state = "live";
  if (isPaused) state = "paused";
  else if (isDown) state = "lost";
  else if (!link.isOpen) state = link.tries || link.hasGivenUp ? "polling" : "connecting";
  if (indicator) {
    indicator.dataset.state = state;
    const behind = seen.behindSeconds === null ? "" : `, ${precise(seen.behindSeconds)} lag`;
    const ago = `last update ${relative(age / 1000)}`;
    indicator.title = `Last update: ${new Date(seen.updatedAt).toLocaleString()}`;
    const words = {
      live: `live${behind}`,
      paused: `paused, ${ago}`,
      lost: ago,
      polling: `every 5 s, ${ago}`,
      connecting: "connecting",
    };
    write(indicator.querySelector("[data-live-text]") ?? indicator, words[state]);
  }
  section?.classList.toggle("stale", state === "lost");
  if (banner) {
    banner.hidden = state !== "lost";
    const text = `Connection lost. Last update ${relative(age / 1000)}. Reconnecting…`;
    if (!banner.hidden) write(banner.querySelector("[data-live-banner-text]") ?? banner, text);
  }
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function pause(on) {
  isPaused = on;
  pauseButton?.setAttribute("aria-pressed", String(on));
  document.dispatchEvent(new CustomEvent("loopguard:paused", { detail: on }));
  if (!on) fetchSoon();
  show();
}

function handOff() {
  const table = body.closest("table") ?? body;
  // After a tap, a touch screen leaves the hover where the finger was.
  const hovers = matchMedia("(hover: hover)").matches && table.matches(":hover");
  isHandOnTable = hovers || body.contains(document.activeElement);
  if (isHandOnTable || !rows.order) return;
  settle(false);
  showBar();
}

function handOn() {
  isHandOnTable = true;
}

function tick() {
  // Slots that could not close and rows that could not enter yet.
  if (rows.order && !isHandOnTable && !isPaused && !rows.isFetching) {
    if (waiting().length || body.querySelector(":scope > .is-gone")) settle(false);
    showBar();
  }
  show();
}

if (follows) {
  follow((hints) => {
    if (hints === null || hints.some((hint) => hint.topic === "session")) fetchSoon();
    show();
  });
  const table = body.closest("table") ?? body;
  table.addEventListener("pointerenter", handOn);
  table.addEventListener("pointerleave", handOff);
  body.addEventListener("focusin", handOn);
  body.addEventListener("focusout", () => setTimeout(handOff));
  newBar?.addEventListener("click", () => {
    if (rows.order) settle(true);
    showBar();
  });
  pauseButton?.addEventListener("click", () => pause(!isPaused));
  setInterval(tick, 1_000);
}
