// Browser notifications of held calls: one for all open tabs, none while a person has one of them in front.
import { storePreference } from "./preference.js";

const STORED_IDS = 200;
const STORE = "loopguard-notified";
const OTHERS_FIRST_MS = 300; // a tab in front marks the call as seen
const shown = new Map();

const isPossible = "Notification" in window && isSecureContext;
const isEnabled = () => isPossible && document.documentElement.dataset.notifications === "on";

/** Announce a held call, unless another tab has done so. */
export async function notify({ id, what, session, summary }) {
  if (!isEnabled() || Notification.permission !== "granted") return;
  if (!document.hasFocus()) await new Promise((resolve) => setTimeout(resolve, OTHERS_FIRST_MS));
  await navigator.locks.request(STORE, () => {
    const known = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    if (known.includes(id)) return;
    localStorage.setItem(STORE, JSON.stringify([...known, id].slice(-STORED_IDS)));
    if (document.hasFocus()) return; // the panel has announced it
    try {
      const made = new Notification(`Held: ${what}`, { body: `${summary}. Session ${session}.`, tag: id });
      made.addEventListener("click", () => {
        window.focus();
        document.dispatchEvent(new CustomEvent("loopguard:held", { detail: id }));
        made.close();
      });
      shown.set(id, made);
    } catch {
      // Some browsers of phones allow notifications only to service workers.
    }
  });
}

/** Remove the notification of a call that waits no longer. */
export function withdraw(id) {
  shown.get(id)?.close();
  shown.delete(id);
}

async function enable(control) {
  const permission = await Notification.requestPermission(); // on a click only
  storePreference("notifications", permission === "granted" ? "on" : "off");
  const region = document.getElementById("announcer");
  const words =
    permission === "granted"
      ? "Notifications enabled in this browser."
      : "This browser blocks notifications of LoopGuard.";
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
  document.addEventListener("click", (event) => {
    const control = event.target.closest?.("[data-notify], input[name=notifications][value=on]");
    if (control && isPossible) enable(control);
  });
}
