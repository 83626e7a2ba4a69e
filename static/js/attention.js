// On every page: badges, title and icon follow the project, and held calls are answered where one is.
//
// The panel never takes the focus. A card that is open, focused or half filled in is left alone; it disappears when the
// call waits no longer, whoever answered it.
import { writeClocks } from "./countdown.js";
import { left } from "./durations.js";
import { keepFetching, writeCount } from "./attention_feed.js";
import { toast } from "./forms.js";
import { follow } from "./link.js";
import { notify, withdraw } from "./notifications.js";

const GAP_MS = { incident: 700, session: 2_500 };
const panel = document.getElementById("attention");
const calls = document.getElementById("attention-calls");
const speaker = document.getElementById("attention-announcer");
const foldButton = panel?.querySelector("[data-fold]");
const first = panel?.querySelector("[data-first]");
const icon = document.querySelector("link[rel=icon]");
const announcer = document.getElementById("announcer");
const FOLDED = "loopguard-held-folded";
const narrow = matchMedia("(max-width: 860px)");
const tabBadge = document.querySelector("[data-held-badge]");
const DOUBLE_CLICK_MS = 700;
const ANNOUNCE_GAP_MS = 10_000;
const announced = { at: 0, session: 0, incident: 0 };
// On a phone, a bar that was folded once is a badge of Now on the next pages, until another call is held.
const state = { cameFrom: null, isOpen: false, isFolded: sessionStorage.getItem(FOLDED) === "yes" };
let soon = null;

const cards = () => [...calls.querySelectorAll("[data-held]")];

function show({ badges, held, held_count: heldCount, closed }) {
  for (const badge of document.querySelectorAll("[data-badge]")) {
    const { text, is_hot: isHot } = badges[badge.dataset.badge];
    write(badge.querySelector("[data-badge-text]"), text);
    badge.classList.toggle("hot", isHot);
    if (badge.closest(".tabbar")) badge.hidden = !isHot;
  }
  showCount(heldCount);
  const wanted = new Map(held.map((one) => [one.id, one]));
  const words = new Map(closed.map((one) => [one.id, one.words]));
  const before = cards();
  const present = new Set(before.map((card) => card.dataset.held));
  const fresh = held.filter((one) => !present.has(one.id));
  for (const one of held) if (present.has(one.id)) update(one);
  for (const one of fresh) add(one);
  for (const card of before) {
    const id = card.dataset.held;
    if (!wanted.has(id)) remove(card, words.get(id), heir(fresh, id));
  }
  if (fresh.length) arrive(fresh);
  settle();
}

function showCount(held) {
  write(panel.querySelector("[data-held-count]"), held.text);
  if (tabBadge) write(tabBadge.querySelector("b"), held.text);
  writeCount(held);
  const href = held.count ? icon.dataset.held : icon.dataset.calm;
  if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
}

function add(one) {
  const card = cardOf(one);
  // A queue: the open card keeps its place, later ones wait behind it.
  card.open = cards().every((other) => !other.open);
  calls.append(card);
}

const cardOf = ({ html }) => {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
};

/** The numbers of a group follow in place, also on its buttons, whatever of it is open or half filled in. */
function update(one) {
  const card = cards().find((other) => other.dataset.held === one.id);
  if (!card.querySelector("[data-part]")) return;
  const next = cardOf(one);
  for (const part of card.querySelectorAll("[data-part]")) {
    const text = next.querySelector(`[data-part="${part.dataset.part}"]`)?.textContent;
    if (text) write(part, text);
  }
}

function arrive(fresh) {
  sessionStorage.removeItem(FOLDED);
  state.isFolded = false;
  const keys = document.documentElement.dataset.shortcuts !== "off" ? " Press h to answer." : "";
  const [newest] = fresh;
  const more = fresh.length > 1 ? ` and ${fresh.length - 1} more` : "";
  speaker.textContent = `Held call: ${newest.what}${more}, ${left(newest.seconds_left)}.${keys}`;
  for (const one of fresh) notify(one);
}

/** A call that became one of several is in their card now, and the last of several in a card of its own. */
function heir(fresh, id) {
  const one = fresh.find(({ first, group }) => first === id || group === id);
  return one && cards().find((card) => card.dataset.held === one.id);
}

function remove(card, words, successor) {
  withdraw(card.dataset.held);
  const hadFocus = card.contains(document.activeElement);
  const isMine = card.dataset.answered === "yes";
  if (successor) {
    successor.open = card.open;
    successor.followedAt = Date.now();
  } else if (words && !isMine) {
    speaker.textContent = words;
    toast(words, false);
  }
  const next = card.nextElementSibling ?? card.previousElementSibling;
  card.remove();
  if (!hadFocus) return;
  if (successor) (successor.querySelector("button[name=choice]") ?? successor.querySelector("summary")).focus();
  else (next?.querySelector("summary") ?? state.cameFrom)?.focus();
}

function settle(isLoading = false) {
  const all = cards();
  panel.hidden = all.length === 0;
  if (panel.hidden) state.isOpen = false;
  panel.classList.toggle("is-open", state.isOpen);
  const isBadge = state.isFolded && narrow.matches && !state.isOpen;
  const isShown = !isBadge && (document.body.dataset.page !== "held" || calls.querySelector("[data-elsewhere]"));
  if (all.length && isShown) document.documentElement.dataset.attention = state.isOpen ? "open" : "bar";
  else delete document.documentElement.dataset.attention;
  if (tabBadge) tabBadge.hidden = !(all.length && isBadge);
  foldButton.setAttribute("aria-expanded", String(state.isOpen));
  write(foldButton, state.isOpen ? "Hide" : calls.querySelector("form") ? "Answer" : "Show");
  if (all.length && all.every((card) => !card.open)) {
    all[0].open = true;
    if (!isLoading) all[0].followedAt = Date.now();
  }
  tick();
}

/** Write the times left, and the most urgent call into the bar. */
function tick() {
  writeClocks(panel, () => soon());
  const now = document.getElementById("now"); // has the groups of held calls too, and is replaced as a whole
  if (now) writeClocks(now, () => soon());
  const [card] = cards();
  if (!card) return;
  const { elsewhere } = card.dataset;
  write(first, `first: ${card.querySelector("time").textContent}${elsewhere ? ` in ${elsewhere}` : ""}`);
}

function open(isIt) {
  if (state.isOpen && !isIt) sessionStorage.setItem(FOLDED, "yes");
  state.isOpen = isIt;
  settle();
}

/** Move the focus to a held call, by its id, or to the first one. */
function enter(id) {
  if (panel.hidden) return;
  open(true);
  const card = cards().find((one) => one.dataset.held === id) ?? cards().find((one) => one.open) ?? cards()[0];
  if (!panel.contains(document.activeElement)) state.cameFrom = document.activeElement;
  card.open = true;
  (card.querySelector("button[name=choice]") ?? card.querySelector("summary")).focus();
}

const send = (address, data) =>
  fetch(address, {
    method: "POST",
    body: new URLSearchParams(data),
    headers: { Accept: "application/json" },
    signal: AbortSignal.timeout(60_000), // an answer may be for 1,000 sessions
  });

/** Undo an answer for a group, as far as no agent has it; the server says how far. */
async function takeBack(form, { undo: ids, undo_url: address }) {
  const token = form.elements.csrfmiddlewaretoken.value;
  try {
    const response = await send(address, { ids, csrfmiddlewaretoken: token });
    toast((await response.json()).detail, !response.ok);
    soon(0);
  } catch {
    toast("Not undone: LoopGuard cannot be reached. Try again.");
  }
}

async function answer(form, submitter) {
  const card = form.closest("[data-held]");
  const buttons = [...form.querySelectorAll("button")];
  const data = new FormData(form, submitter);
  for (const button of buttons) button.disabled = true;
  card.dataset.answered = "yes"; // what is fetched meanwhile is no answer of another person
  let text = "";
  let isDone = false;
  let undo = {};
  try {
    const response = await send(form.action, data);
    const document_ = (response.headers.get("Content-Type") ?? "").includes("json") ? await response.json() : {};
    text = document_.detail ?? "The answer was not accepted. Reload the page.";
    undo = document_;
    isDone = response.ok || response.status === 409; // another person was first
  } catch {
    text = "Not sent: LoopGuard cannot be reached. Try again.";
  }
  toast(text, !isDone, undo.undo && (() => takeBack(form, undo)));
  if (isDone) {
    const hadFocus = card.contains(document.activeElement) || document.activeElement === document.body;
    const next = card.nextElementSibling ?? card.previousElementSibling;
    card.remove();
    settle();
    if (hadFocus) (next?.querySelector("summary") ?? state.cameFrom)?.focus();
    soon(0);
  } else {
    delete card.dataset.answered;
    for (const button of buttons) button.disabled = false;
  }
}

function count(hints) {
  for (const { topic, change } of hints ?? []) if (topic === "incident" && change === "opened") announced.incident += 1;
}

/** Say at most every ten seconds what is new. */
function sayNew() {
  const now = Date.now();
  if (now - announced.at < ANNOUNCE_GAP_MS || (!announced.session && !announced.incident)) return;
  const words = (n, one, many) => (n ? [`${n} new ${n === 1 ? one : many}`] : []);
  const runs = words(announced.incident, "run of a loop", "runs of loops");
  announcer.textContent = [...words(announced.session, "session", "sessions"), ...runs].join(", ");
  Object.assign(announced, { at: now, session: 0, incident: 0 });
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

if (panel) {
  soon = keepFetching(() => `${panel.dataset.url}?known=${cards().map((card) => card.dataset.held)}`, show, GAP_MS);
  follow(count);
  calls.addEventListener("submit", (event) => {
    event.preventDefault();
    // The second click of a double click is not for the call that took the place of the answered one.
    const { followedAt = 0 } = event.target.closest("[data-held]");
    if (Date.now() - followedAt > DOUBLE_CLICK_MS) answer(event.target, event.submitter);
  });
  foldButton.addEventListener("click", () => open(!state.isOpen));
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    open(false);
    (state.cameFrom?.isConnected ? state.cameFrom : foldButton).focus();
  });
  document.addEventListener("loopguard:held", (event) => enter(event.detail));
  document.addEventListener("loopguard:new-sessions", (event) => {
    announced.session += event.detail;
  });
  setInterval(() => {
    tick();
    sayNew();
  }, 500);
  settle(true);
}
