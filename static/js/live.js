// Live updates: receives hints on the socket, fetches rows by cursor, and moves no row under the pointer.
//
// Without a socket the page polls every few seconds.
// Markup: #live[data-rows-url][data-cursor] with [data-live-rows] inside; [data-refresh-on="session incident"] gets a
// `refresh` event (for htmx) when such a thing changed, with data-refresh-id only for the one of that name.

const BACKOFF_MS = [500, 30_000];
const FETCH_GAP_MS = 300;
const POLL_MS = 5_000;
const SAFETY_POLL_MS = 15_000;
const REFRESH_GAP_MS = 1_500;
const ANNOUNCE_GAP_MS = 10_000;
const STALE_MS = 20_000;
const SLEEP_MS = 10_000;
const GAVE_UP = new Set([4401, 4404]);

const section = document.getElementById("live");
const body = section?.querySelector("[data-live-rows]") ?? null;
const newBar = document.getElementById("live-new");
const pauseButton = document.getElementById("live-pause");
const indicator = document.getElementById("live-state");
const banner = document.getElementById("live-banner");
const announcer = document.getElementById("announcer");
const follows = Boolean(section && body) && section.dataset.follow !== "no";

const link = { socket: null, tries: 0, isOpen: false, brokerIsUp: true, retryAt: 0, timer: 0, hasGivenUp: false };
const rows = {
  cursor: section?.dataset.cursor ?? "",
  order: null, // until the first answer
  held: new Map(),
  isFetching: false,
  wants: false,
  timer: 0,
};
const seen = { updatedAt: Date.now(), behindSeconds: null, tickAt: Date.now(), polledAt: Date.now(), isLost: false };
const announced = { at: 0, sessions: 0, incidents: 0 };
let isPaused = false;
let isHandOnTable = false;

// --- the socket ---

function socketUrl() {
  const url = new URL(document.body.dataset.liveUrl);
  const isLoopback = (host) => ["127.0.0.1", "localhost", "[::1]"].includes(host);
  // Cookies belong to the host name of the page.
  if (isLoopback(url.hostname) && isLoopback(location.hostname)) url.hostname = location.hostname;
  return url;
}

function connect() {
  if (link.socket || link.hasGivenUp) return;
  let socket;
  try {
    socket = new WebSocket(socketUrl());
  } catch {
    reconnectLater(true); // forbidden by a policy; retried at long intervals
    return;
  }
  link.socket = socket;
  socket.addEventListener("message", (event) => handleFrame(JSON.parse(event.data)));
  socket.addEventListener("close", (event) => {
    if (link.socket !== socket) return;
    link.socket = null;
    link.isOpen = false;
    link.hasGivenUp = GAVE_UP.has(event.code);
    if (event.code === 4401) location.reload();
    if (!link.hasGivenUp) reconnectLater(event.code === 1013);
    show();
  });
}

function reconnectLater(isAskedToWait) {
  const [first, longest] = BACKOFF_MS;
  const most = Math.min(longest, first * 2 ** (link.tries + (isAskedToWait ? 3 : 0)));
  const wait = Math.max(200, Math.random() * most);
  link.tries += 1;
  link.retryAt = Date.now() + wait;
  clearTimeout(link.timer);
  link.timer = setTimeout(connect, wait);
}

function handleFrame(frame) {
  if (frame.type === "ready") {
    link.isOpen = true;
    link.tries = 0;
    const session = document.body.dataset.liveSession;
    if (session) link.socket.send(JSON.stringify({ type: "watch", topics: ["session", "incident"], session }));
    resync();
  } else if (frame.type === "resync") {
    resync();
  } else if (frame.type === "beat") {
    link.brokerIsUp = frame.broker;
  } else if (frame.type === "hints") {
    for (const hint of frame.hints) count(hint);
    if (frame.hints.some((hint) => hint.topic === "session")) fetchSoon();
    refreshParts(frame.hints);
  }
  show();
}

// --- rows ---

function resync() {
  fetchSoon();
  refreshParts(null);
}

function fetchSoon() {
  if (!follows || isPaused || document.hidden) return; // coming back is a resync
  if (rows.isFetching) {
    rows.wants = true;
  } else if (!rows.timer) {
    rows.timer = setTimeout(fetchRows, FETCH_GAP_MS * (0.5 + Math.random() / 2));
  }
}

async function fetchRows() {
  rows.timer = 0;
  rows.isFetching = true;
  seen.polledAt = Date.now();
  try {
    const query = new URLSearchParams(location.search);
    query.delete("cursor");
    query.set("since", rows.cursor);
    const answer = await fetch(`${section.dataset.rowsUrl}?${query}`, {
      headers: { Accept: "application/json" },
      signal: AbortSignal.timeout(10_000),
    });
    if (answer.redirected) location.reload(); // signed out
    if (!answer.ok) throw new Error(`answered ${answer.status}`);
    const changes = await answer.json();
    if (!isPaused) take(changes); // while paused the cursor stays, so the next fetch has these again
    seen.isLost = false;
    seen.updatedAt = Date.now();
  } catch {
    seen.isLost = true;
  }
  rows.isFetching = false;
  if (rows.wants) {
    rows.wants = false;
    fetchSoon();
  }
  show();
}

function take(answer) {
  rows.cursor = answer.cursor;
  rows.order = answer.order;
  if (answer.behind_seconds !== null) seen.behindSeconds = answer.behind_seconds;
  for (const row of answer.rows) {
    const shown = document.getElementById(row.id);
    if (shown) patch(shown, row.html);
    else rows.held.set(row.id, row.html);
  }
  const wanted = new Set(answer.order);
  for (const id of rows.held.keys()) if (!wanted.has(id)) rows.held.delete(id);
  for (const row of body.children) row.classList.toggle("is-gone", !wanted.has(row.id));
  // A session becomes idle by the clock alone, without a change at the cursor.
  const isOutdated = answer.order.some((id, place) => {
    const row = document.getElementById(id);
    return row && row.dataset.state !== answer.states[place];
  });
  if (isOutdated && !answer.reset) {
    rows.cursor = "";
    rows.wants = true;
  }
  if (isHandOnTable) showBar();
  else settle(false);
}

/** Put rows in and take rows out. Those that stay keep their places unless `isWhole`. */
function settle(isWhole) {
  const wanted = new Set(rows.order);
  const stays = [...body.children].filter((row) => wanted.has(row.id));
  const present = new Set(stays.map((row) => row.id));
  const fresh = rows.order.filter((id) => !present.has(id));
  if (fresh.some((id) => !rows.held.has(id))) {
    rows.cursor = ""; // a row came back that did not change meanwhile
    fetchSoon();
    return;
  }
  const gone = [...body.children].filter((row) => !wanted.has(row.id));
  for (const row of gone) row.remove();
  const made = fresh.map((id) => {
    const row = rowOf(rows.held.get(id));
    row.classList.add("is-new");
    return row;
  });
  body.prepend(...made);
  if (isWhole) {
    const byId = new Map([...body.children].map((row) => [row.id, row]));
    body.append(...rows.order.map((id) => byId.get(id)));
  }
  announced.sessions += fresh.length;
  rows.held.clear();
  if (newBar) newBar.hidden = true;
  const empty = document.getElementById("live-empty");
  if (empty) empty.hidden = body.children.length > 0;
  if (made.length) setTimeout(() => made.forEach((row) => row.classList.remove("is-new")), 4_000);
  if (made.length || gone.length) document.dispatchEvent(new CustomEvent("loopguard:rows"));
}

function rowOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

/** Take over what differs, cell by cell, so that focus, selection and a ticked box stay where they are. */
function patch(row, html) {
  const next = rowOf(html);
  for (const { name, value } of next.attributes)
    if (name !== "class" && row.getAttribute(name) !== value) row.setAttribute(name, value);
  [...next.children].forEach((cell, index) => {
    const old = row.children[index];
    if (!old || old.querySelector("input") || old.contains(document.activeElement)) return;
    if (old.innerHTML !== cell.innerHTML) old.replaceChildren(...cell.childNodes);
  });
  document.dispatchEvent(new CustomEvent("loopguard:rows"));
}

function showBar() {
  if (!newBar) return;
  const held = rows.held.size;
  newBar.hidden = held === 0;
  const keys = document.documentElement.dataset.shortcuts !== "off";
  newBar.textContent = `${held} new${keys ? " \u2013 press ." : ", show"}`;
}

// --- fragments that htmx refreshes ---

const refreshing = new Map();

function refreshParts(hints) {
  if (isPaused || document.hidden) return;
  const parts = [...document.querySelectorAll("[data-refresh-on]")];
  const figures = document.getElementById("figures");
  if (figures && !parts.includes(figures)) parts.push(figures);
  for (const part of parts) {
    const topics = (part.dataset.refreshOn ?? "session incident").split(" ");
    const id = part.dataset.refreshId;
    const isMeant = (hint) =>
      topics.includes(hint.topic) && (!id || !hint.id || hint.topic !== topics[0] || hint.id === id);
    if (hints === null || hints.some(isMeant)) refreshSoon(part.id);
  }
}

function refreshSoon(id) {
  if (!id) return;
  const turn = refreshing.get(id);
  if (turn) {
    turn.again ||= turn.isSent; // what came after it was sent needs one more
    return;
  }
  const mine = { isSent: false, again: false };
  refreshing.set(id, mine);
  setTimeout(
    () => {
      mine.isSent = true;
      document.getElementById(id)?.dispatchEvent(new Event("refresh"));
      setTimeout(() => {
        refreshing.delete(id);
        if (mine.again) refreshSoon(id);
      }, REFRESH_GAP_MS);
    },
    id === "figures" ? 2 * REFRESH_GAP_MS : REFRESH_GAP_MS / 4,
  );
}

// --- status and announcements ---

function count(hint) {
  if (hint.topic === "incident" && hint.change === "opened") announced.incidents += 1;
}

function announce() {
  const now = Date.now();
  if (!announcer || now - announced.at < ANNOUNCE_GAP_MS || (!announced.sessions && !announced.incidents)) return;
  const words = (n, one) => (n ? [`${n} new ${one}${n === 1 ? "" : "s"}`] : []);
  announcer.textContent = [...words(announced.sessions, "session"), ...words(announced.incidents, "incident")].join(
    ", ",
  );
  Object.assign(announced, { at: now, sessions: 0, incidents: 0 });
}

function show() {
  const age = Date.now() - seen.updatedAt;
  const isDown = seen.isLost || age > STALE_MS + SAFETY_POLL_MS;
  let state = "live";
  if (isPaused) state = "paused";
  else if (isDown) state = "lost";
  else if (!link.isOpen) state = link.tries || link.hasGivenUp ? "polling" : "connecting";
  if (indicator && follows) {
    indicator.dataset.state = state;
    const behind = seen.behindSeconds === null ? "" : `, ${seen.behindSeconds.toFixed(1)} s lag`;
    const ago = `last update ${Math.round(age / 1000)} s ago`;
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
    const retry = Math.max(0, Math.round((link.retryAt - Date.now()) / 1000));
    const last = Math.round(age / 1000);
    const text = `Connection to LoopGuard lost. Last update ${last} s ago, next attempt in ${retry} s.`;
    if (!banner.hidden) write(banner.querySelector("[data-live-banner-text]") ?? banner, text);
  }
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- pointer and focus ---

function pause(on) {
  isPaused = on;
  pauseButton?.setAttribute("aria-pressed", String(on));
  if (!on) resync();
  show();
}

function handOn() {
  isHandOnTable = true;
}

function handOff() {
  const table = body.closest("table") ?? body;
  isHandOnTable = table.matches(":hover") || body.contains(document.activeElement);
  if (!isHandOnTable && rows.order) settle(false);
}

function tick() {
  const now = Date.now();
  const hasSlept = now - seen.tickAt > SLEEP_MS;
  seen.tickAt = now;
  if (hasSlept && !document.hidden) resync();
  const period = link.isOpen && link.brokerIsUp ? SAFETY_POLL_MS : POLL_MS;
  if (!document.hidden && now - seen.polledAt > period) {
    seen.polledAt = now;
    if (follows) fetchSoon();
    if (period === POLL_MS) refreshParts(null);
  }
  announce();
  show();
}

if (document.body.dataset.liveUrl) {
  if (follows) {
    const table = body.closest("table") ?? body;
    table.addEventListener("pointerenter", handOn);
    table.addEventListener("pointerleave", handOff);
    body.addEventListener("focusin", handOn);
    body.addEventListener("focusout", () => setTimeout(handOff));
    newBar?.addEventListener("click", () => settle(true));
    pauseButton?.addEventListener("click", () => pause(!isPaused));
  }
  document.addEventListener("visibilitychange", () => document.hidden || resync());
  addEventListener("pageshow", (event) => event.persisted && resync());
  addEventListener("online", () => link.socket || connect());
  setInterval(tick, 1_000);
  connect();
}
