// Browser notifications of held calls: one for all open tabs, none while a person has one of them in front.
import { storePreference } from "./preference.js";

const STORED_IDS = 200;
const STORE = "loopguard-notified";
const OTHERS_FIRST_MS = 300; // a tab in front marks the call as seen
const WORKER = new URL("./service_worker.js", import.meta.url);
const shown = new Map();

const isPossible = "Notification" in window && isSecureContext;
const isEnabled = () => isPossible && document.documentElement.dataset.notifications === "on";

/** Announce a held call, unless another tab has done so. */
export async function notify({ id, what, session, summary }) {
  if (!isEnabled() || Notification.permission !== "granted") return;
  if (!document.hasFocus()) await new Promise((resolve) => setTimeout(resolve, OTHERS_FIRST_MS));
  const isMine = await navigator.locks.request(STORE, () => {
    const known = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    if (known.includes(id)) return false;
    localStorage.setItem(STORE, JSON.stringify([...known, id].slice(-STORED_IDS)));
    return !document.hasFocus(); // in front, the panel has announced it
  });
  if (!isMine) return;
  const [title, options] = [`Held: ${what}`, { body: `${summary}. Session ${session}.`, tag: id }];
  try {
    const made = new Notification(title, options);
    made.addEventListener("click", () => {
      window.focus();
      openHeld(id);
      made.close();
    });
    shown.set(id, made);
  } catch {
    // Chrome on Android: only a service worker may show notifications.
    const project = location.origin + (/^\/p\/[^/]+\//.exec(location.pathname)?.[0] ?? "/");
    const worker = await startWorker();
    await worker?.showNotification(title, { ...options, data: { page: location.href, project } });
  }
}

const openHeld = (id) => document.dispatchEvent(new CustomEvent("loopguard:held", { detail: id }));

/** Return the registration of the service worker once it is active; undefined where there is none. */
async function startWorker() {
  const made = await navigator.serviceWorker?.register(WORKER);
  const starting = made?.active ? undefined : (made?.installing ?? made?.waiting);
  if (starting)
    await new Promise((resolve) => {
      starting.addEventListener("statechange", () => {
        if (["activated", "redundant"].includes(starting.state)) resolve();
      });
    });
  return made?.active ? made : undefined;
}

/** Remove the notification of a call that waits no longer. */
export async function withdraw(id) {
  shown.get(id)?.close();
  shown.delete(id);
  const worker = await navigator.serviceWorker?.getRegistration(WORKER);
  for (const one of (await worker?.getNotifications({ tag: id })) ?? []) one.close();
}

async function enable(control) {
  const permission = await Notification.requestPermission(); // on a click only
  storePreference("notifications", permission === "granted" ? "on" : "off");
  const region = document.getElementById("announcer");
  const words =
    permission === "granted"
      ? "Notifications enabled in this browser."
      : "This browser blocks notifications from LoopGuard.";
  if (region) region.textContent = words;
  if (control.matches("input")) {
    if (permission !== "granted") control.form.elements.notifications.value = "off";
    const note = control.closest("fieldset")?.querySelector("[data-note]");
    if (note) note.textContent = words;
  }
  offer();
}

/** Show the button that enables notifications where that is possible and not decided. */
function offer() {
  for (const button of document.querySelectorAll("button[data-notify]"))
    button.hidden = !isPossible || Notification.permission === "denied" || isEnabled();
}

export function bindNotifications() {
  offer();
  navigator.serviceWorker?.addEventListener("message", ({ data }) => data?.held && openHeld(data.held));
  document.addEventListener("click", (event) => {
    const control = event.target.closest?.("[data-notify], input[name=notifications][value=on]");
    if (control && isPossible) enable(control);
  });
}
