// Time left of held calls: [data-seconds-left][data-seconds-in-all], counted from the time left at rendering, as the
// clock of the browser may be wrong.
const shownAt = new WeakMap();

export function words(seconds) {
  if (seconds <= 0) return "time is up";
  if (seconds < 60) return `${Math.ceil(seconds)} s left`;
  const [minutes, rest] = [Math.floor(seconds / 60), Math.floor(seconds % 60)];
  if (minutes < 90) return rest ? `${minutes} min ${rest} s left` : `${minutes} min left`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min left`;
}

/** Seconds until the deadline of a clock. */
export function secondsLeft(clock) {
  if (!shownAt.has(clock)) shownAt.set(clock, performance.now());
  return Number(clock.dataset.secondsLeft) - (performance.now() - shownAt.get(clock)) / 1000;
}

/** Write all clocks; `onEnd` is called once for each whose time is up. */
export function writeClocks(within, onEnd) {
  for (const clock of within.querySelectorAll("[data-seconds-left]")) {
    const left = secondsLeft(clock);
    const text = clock.querySelector("[data-left-text]");
    if (text.textContent !== words(left)) text.textContent = words(left);
    const share = Math.max(0, Math.min(1, left / Number(clock.dataset.secondsInAll)));
    clock.querySelector("path").setAttribute("d", `M3 3h${Math.max(0.01, 58 * share).toFixed(2)}`);
    clock.classList.toggle("urgent", left < 20);
    if (left <= -1 && !clock.dataset.ended) {
      clock.dataset.ended = "yes";
      onEnd(clock);
    }
  }
}
