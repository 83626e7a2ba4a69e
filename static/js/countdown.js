// Time left of held calls: [data-seconds-left][data-seconds-in-all], counted from the time left at rendering, as the
// clock of the browser may be wrong.
import { left } from "./durations.js";

const shownAt = new WeakMap();

/** Seconds until the deadline of a clock. */
export function secondsLeft(clock) {
  if (!shownAt.has(clock)) shownAt.set(clock, performance.now());
  return Number(clock.dataset.secondsLeft) - (performance.now() - shownAt.get(clock)) / 1000;
}

/** Write all clocks; `onEnd` is called once for each whose time is up. */
export function writeClocks(within, onEnd) {
  for (const clock of within.querySelectorAll("[data-seconds-left]")) {
    const seconds = secondsLeft(clock);
    const text = clock.querySelector("time");
    const words = left(seconds);
    if (text.textContent !== words) text.textContent = words;
    const share = Math.max(0, Math.min(1, seconds / Number(clock.dataset.secondsInAll)));
    clock.querySelector("path").setAttribute("d", `M3 3h${Math.max(0.01, 58 * share).toFixed(2)}`);
    clock.classList.toggle("urgent", seconds < 20);
    if (seconds <= -1 && !clock.dataset.ended) {
      clock.dataset.ended = "yes";
      onEnd(clock);
    }
  }
}
