// The socket of a page and what to do without it: modules follow it and learn that something changed, never what.
//
// A follower gets `(hints, reason)`: hints are null where anything may have changed, and the reason is "hints",
// "resync" (the socket is up again, or the page was asleep) or "poll" (the clock, as hints may be lost).

const BACKOFF_MS = [250, 2_000]; // the process may be back at any moment
const PATIENT_TRIES = 6;
const REJECTED_MS = 8_000; // a browser does not tell whether a socket was rejected or the process is away
const CONNECT_MS = 5_000;
const POLL_MS = 5_000;
const SAFETY_POLL_MS = 15_000;
const SLEEP_MS = 10_000;
const SIGNED_OUT = 4401;
const GAVE_UP = new Set([SIGNED_OUT, 4404]);

const liveUrl = document.querySelector("[data-live-url]")?.dataset.liveUrl;
export const link = { isOpen: false, tries: 0, retryAt: 0, brokerIsUp: true, hasGivenUp: false };
const followers = [];
let socket = null;
let timer = 0;
let polledAt = Date.now();
let tickAt = Date.now();

/** Call a function with every change; see the head of this file. */
export function follow(follower) {
  followers.push(follower);
}

/** Tell the page that its person is signed out, if an answer shows that. */
export function noteSignIn(answer) {
  if (answer.redirected || answer.status === 401) document.dispatchEvent(new CustomEvent("loopguard:signed-out"));
}

function tell(hints, reason) {
  if (hints === null) polledAt = Date.now();
  for (const follower of followers) follower(hints, reason);
}

function socketUrl() {
  const url = new URL(liveUrl);
  const isLoopback = (host) => ["127.0.0.1", "localhost", "[::1]"].includes(host);
  // Cookies belong to the host name of the page.
  if (isLoopback(url.hostname) && isLoopback(location.hostname)) url.hostname = location.hostname;
  return url;
}

function connect() {
  clearTimeout(timer);
  if (socket || link.hasGivenUp) return;
  let opened;
  try {
    opened = new WebSocket(socketUrl());
  } catch {
    reconnectLater(); // forbidden by a policy
    return;
  }
  socket = opened;
  // A host that answers nothing would keep the page waiting for minutes.
  const deadline = setTimeout(() => opened.close(), CONNECT_MS);
  opened.addEventListener("message", (event) => {
    clearTimeout(deadline);
    handleFrame(JSON.parse(event.data));
  });
  opened.addEventListener("close", (event) => {
    clearTimeout(deadline);
    if (socket !== opened) return;
    socket = null;
    link.isOpen = false;
    link.hasGivenUp = GAVE_UP.has(event.code);
    if (event.code === SIGNED_OUT) document.dispatchEvent(new CustomEvent("loopguard:signed-out"));
    if (!link.hasGivenUp) reconnectLater();
    tell([], "hints");
  });
}

function reconnectLater() {
  const [first, longest] = BACKOFF_MS;
  const most = link.tries < PATIENT_TRIES ? Math.min(longest, first * 2 ** link.tries) : REJECTED_MS;
  const wait = most * (0.5 + Math.random() / 2); // all open pages come back at once
  link.tries += 1;
  link.retryAt = Date.now() + wait;
  clearTimeout(timer);
  timer = setTimeout(connect, wait);
}

function handleFrame(frame) {
  if (frame.type === "ready") {
    link.isOpen = true;
    link.tries = 0;
    const session = document.body.dataset.liveSession;
    const topics = ["session", "incident", "approval", "held", "containment"];
    if (session) socket.send(JSON.stringify({ type: "watch", topics, session }));
    tell(null, "resync");
  } else if (frame.type === "resync") tell(null, "resync");
  else if (frame.type === "beat") link.brokerIsUp = frame.broker;
  else if (frame.type === "hints") tell(frame.hints, "hints");
}

function wake() {
  link.tries = 0;
  connect();
}

function tick() {
  const now = Date.now();
  const hasSlept = now - tickAt > SLEEP_MS;
  tickAt = now;
  if (hasSlept && !document.hidden) tell(null, "resync");
  else if (now - polledAt > (link.isOpen && link.brokerIsUp ? SAFETY_POLL_MS : POLL_MS)) tell(null, "poll");
}

if (liveUrl) {
  // What the page fetches tells it, as a rejected handshake does not.
  document.addEventListener("loopguard:signed-out", () => {
    link.hasGivenUp = true;
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    wake();
    tell(null, "resync");
  });
  addEventListener("pageshow", (event) => event.persisted && tell(null, "resync"));
  addEventListener("online", wake);
  setInterval(tick, 1_000);
  queueMicrotask(connect); // once all modules of the page follow
}
