// The Approvals page: countdowns, and a list that is not replaced while the pointer or the focus is in it.
import { writeClocks } from "./countdown.js";

const list = () => document.getElementById("approval-list");
const changes = document.getElementById("approval-changes");
let opened = [];
const tick = () => writeClocks(list(), () => window.htmx?.trigger(list(), "refresh"));

const held = () =>
  list().contains(document.activeElement) ||
  (matchMedia("(hover: hover)").matches && list().querySelector(".approval:hover") !== null);

document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target !== list()) return;
  opened = [...list().querySelectorAll(".one-by-one[open]")].map((one) => one.id);
  if (!held()) return;
  const fresh = new DOMParser().parseFromString(event.detail.serverResponse ?? "", "text/html");
  const ids = (root) => [...root.querySelectorAll(".approval")].map((one) => one.id).join();
  event.detail.shouldSwap = false;
  if (ids(fresh) !== ids(list())) changes.hidden = false;
});
document.addEventListener("htmx:afterSwap", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  changes.hidden = true;
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
