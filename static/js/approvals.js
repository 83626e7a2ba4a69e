// The Approvals page: countdowns, and a list that is not replaced while the pointer or the focus is in it.
const list = () => document.getElementById("approval-list");
const changes = document.getElementById("approval-changes");
const shownAt = new WeakMap();

function words(seconds) {
  if (seconds <= 0) return "time is up";
  if (seconds < 100) return `${Math.ceil(seconds)} s left`;
  return seconds < 5400
    ? `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s left`
    : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min left`;
}

function tick() {
  for (const clock of document.querySelectorAll("[data-seconds-left]")) {
    // Counted from the time left at rendering, as the clock of the browser may be wrong.
    if (!shownAt.has(clock)) shownAt.set(clock, performance.now());
    const left = Number(clock.dataset.secondsLeft) - (performance.now() - shownAt.get(clock)) / 1000;
    const share = Math.max(0, Math.min(1, left / Number(clock.dataset.secondsInAll)));
    clock.querySelector("[data-left-text]").textContent = words(left);
    clock.querySelector("path").setAttribute("d", `M3 3h${Math.max(0.01, 58 * share).toFixed(2)}`);
    clock.classList.toggle("urgent", left < 20);
    if (left <= -1 && !clock.dataset.refreshed) {
      clock.dataset.refreshed = "yes";
      window.htmx?.trigger(list(), "refresh");
    }
  }
}

const held = () =>
  list().contains(document.activeElement) ||
  (matchMedia("(hover: hover)").matches && list().querySelector(".approval:hover") !== null);

document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target !== list() || !held()) return;
  const fresh = new DOMParser().parseFromString(event.detail.serverResponse ?? "", "text/html");
  const ids = (root) => [...root.querySelectorAll(".approval")].map((one) => one.id).join();
  event.detail.shouldSwap = false;
  if (ids(fresh) !== ids(list())) changes.hidden = false;
});
document.addEventListener("htmx:afterSwap", () => {
  changes.hidden = true;
  const count = Number(list().dataset.count);
  document.title = `${count ? `(${count}) ` : ""}Approvals · LoopGuard`;
  tick();
});
function show() {
  if (!changes.hidden && !held()) window.htmx?.trigger(list(), "refresh");
}
changes.addEventListener("click", () => {
  document.activeElement?.blur();
  changes.hidden = true;
  window.htmx?.trigger(list(), "refresh");
});
document.addEventListener("pointerout", () => setTimeout(show, 50));
document.addEventListener("focusout", () => setTimeout(show, 50));
tick();
setInterval(tick, 500);
