// The navigator of a session's page: drag over a map to zoom, arrow keys to move, a call's details beside its strip.
// Every step is a link or an address that works without this script.

const DRAG_PX = 4;
const MOVE_PAUSE_MS = 250;
const MIN_CALLS = 10;
let drag = null;
let hasDragged = false;
let moveTimer = 0;

/** Go to a window of calls; `from` is the number of the first. */
function go(from, calls, anchor) {
  const url = new URL(location.href);
  for (const name of ["call", "before"]) url.searchParams.delete(name);
  url.searchParams.set("from", String(Math.max(1, Math.round(from))));
  url.searchParams.set("calls", String(Math.round(calls)));
  url.hash = anchor;
  location.assign(url);
}

const numbersOf = (map) => ({
  first: Number(map.dataset.first),
  calls: Number(map.dataset.calls),
  size: Number(map.dataset.size),
});

function shareAt(map, x) {
  const box = map.querySelector("svg.map").getBoundingClientRect();
  return Math.min(1, Math.max(0, (x - box.left) / box.width));
}

document.addEventListener("pointerdown", (event) => {
  const map = event.target.closest?.("[data-map]");
  if (!map || event.button !== 0 || event.target.closest(".bracket")) return;
  drag = { map, x: event.clientX, start: shareAt(map, event.clientX), isMoved: false };
});

document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  drag.isMoved ||= Math.abs(event.clientX - drag.x) >= DRAG_PX;
  if (!drag.isMoved) return;
  const end = shareAt(drag.map, event.clientX);
  const mark = drag.map.querySelector(".drag");
  mark?.setAttribute("x", `${Math.min(drag.start, end) * 100}%`);
  mark?.setAttribute("width", `${Math.abs(end - drag.start) * 100}%`);
});

document.addEventListener("pointerup", (event) => {
  const ended = drag;
  drag = null;
  if (!ended?.isMoved) return; // a click: the link below it
  hasDragged = true; // and no click on the link where it began
  setTimeout(() => {
    hasDragged = false;
  });
  const end = shareAt(ended.map, event.clientX);
  const { first, calls } = numbersOf(ended.map);
  const low = Math.min(ended.start, end);
  const size = Math.max(MIN_CALLS, Math.abs(end - ended.start) * calls);
  go(first + low * calls, size, "run");
});

document.addEventListener("pointercancel", () => {
  drag?.map.querySelector(".drag")?.setAttribute("width", "0");
  drag = null;
});
// The browser would drag the link.
document.addEventListener("dragstart", (event) => {
  if (event.target.closest?.("[data-map]")) event.preventDefault();
});
document.addEventListener(
  "click",
  (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link) return;
    if (hasDragged && link.closest("[data-map]")) event.preventDefault();
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const url = new URL(link.href.baseVal ?? link.href, location.href);
    if (url.hash === "#call" && url.pathname === location.pathname && document.getElementById("call")) {
      event.preventDefault();
      openCall(url.searchParams.get("call"));
    }
  },
  true,
);

/** Load a call's details beside the strip; the address names the call, so that it can be copied. */
function openCall(seq) {
  const panel = document.getElementById("call");
  const part = new URL(panel.dataset.url, location.href);
  part.searchParams.set("call", seq);
  const url = new URL(location.href);
  part.searchParams.set("q", url.searchParams.get("q") ?? "");
  globalThis.htmx.ajax("GET", part.pathname + part.search, { target: panel, swap: "innerHTML" });
  url.searchParams.set("call", seq);
  history.replaceState(null, "", url);
  markChosen(seq);
}

function markChosen(seq) {
  for (const shown of document.querySelectorAll("tr.at")) shown.classList.remove("at");
  for (const link of document.querySelectorAll(".tree a[data-seq]")) {
    if (link.dataset.seq === seq) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  document.getElementById(`c-${seq}`)?.classList.add("at");
}

// --- times on the axes, in the reader's zone ---

function writeAxes() {
  const isUtc = document.documentElement.dataset.time === "utc";
  for (const text of document.querySelectorAll(".axis[data-at]")) {
    const hasDay = "withDay" in text.dataset;
    text.textContent = new Intl.DateTimeFormat(undefined, {
      ...(hasDay ? { day: "2-digit", month: "short" } : { second: "2-digit" }),
      hour: "2-digit",
      minute: "2-digit",
      hourCycle: "h23",
      timeZone: isUtc ? "UTC" : undefined,
    }).format(new Date(text.dataset.at));
  }
}
writeAxes();
document.addEventListener("loopguard:time", () => setTimeout(writeAxes));

// --- the slider: the map by keyboard ---

const slider = document.getElementById("run-slider");
slider?.addEventListener("keydown", (event) => {
  const { size } = numbersOf(document.getElementById("run-map"));
  const steps = { ArrowLeft: -size / 2, ArrowRight: size / 2, PageDown: -size, PageUp: size };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  slider.value = String(Number(slider.value) + Math.round(step));
  slider.dispatchEvent(new Event("input"));
});
slider?.addEventListener("input", () => {
  const map = document.getElementById("run-map");
  const { first, calls, size } = numbersOf(map);
  const last = Math.min(first + calls - 1, Number(slider.value) + size - 1);
  slider.setAttribute("aria-valuetext", `Calls ${slider.value} to ${last}`);
  map.querySelector(".view")?.setAttribute("x", `${((slider.value - first) / calls) * 100}%`);
  clearTimeout(moveTimer);
  moveTimer = setTimeout(() => go(Number(slider.value), size, "run-slider"), MOVE_PAUSE_MS);
});

// --- updates of a session that runs ---

document.addEventListener("htmx:configRequest", (event) => {
  // The address may name another call by now.
  if (event.target.id === "session-follow") event.detail.path = location.pathname + location.search;
});
document.addEventListener("htmx:oobBeforeSwap", (event) => {
  const target = event.detail.target;
  const isRead = target.id === "session-calls" && (target.matches(":hover") || target.contains(document.activeElement));
  if (isRead || (drag && target.contains(drag.map))) event.detail.shouldSwap = false;
});
document.addEventListener("htmx:afterSettle", () => {
  writeAxes();
  const map = document.getElementById("run-map");
  if (!slider || !map) return;
  const { first, calls, size } = numbersOf(map);
  slider.max = String(first + calls - size);
  if (document.activeElement !== slider) slider.value = map.dataset.start;
});
