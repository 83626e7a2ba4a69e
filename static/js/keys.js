// Keyboard shortcuts: one table binds the keys, writes the help and fills the command palette.
import { copyText } from "./copy.js";
import { toast } from "./forms.js";

const table = [
  ["?", "Show keyboard shortcuts", () => document.getElementById("help")?.showModal(), true],
  ["/", "Focus the filter", () => document.querySelector("[data-focus-key='/']")?.focus()],
  ["j", "Next row", () => move(1)],
  ["k", "Previous row", () => move(-1)],
  ["o", "Open the row", () => current()?.querySelector("a.name, a")?.click()],
  ["X", "Select the rows up to this one", () => selectRange()],
  ["x", "Select the row", () => current()?.querySelector("input[type=checkbox]")?.click()],
  ["a", "Assign to me", () => press("a")],
  ["d", "Done", () => press("d")],
  ["l", "Later", () => press("l")],
  ["f", "This is fine", () => press("f")],
  ["c", "Comment", () => press("c")],
  ["u", "Undo", () => press("u")],
  ["[", "Previous call or newer run", () => press("[")],
  ["]", "Next call or older run", () => press("]")],
  [".", "Show new rows", () => document.getElementById("live-new")?.click()],
  ["n", "Next loop of the session", () => press("n")],
  ["p", "Pause live updates, or previous loop", () => (document.getElementById("live-pause") ?? named("p"))?.click()],
  ["+", "Zoom in", () => press("+")],
  ["-", "Zoom out", () => press("-")],
  ["0", "Whole run", () => press("0")],
  [">", "Next hit of the search", () => press(">")],
  ["<", "Previous hit of the search", () => press("<")],
  ["h", "Answer the held call", () => document.dispatchEvent(new CustomEvent("loopguard:held"))],
  ["S", "Stop everything of…", () => press("S")],
  ["t", "Change the time format", () => document.dispatchEvent(new CustomEvent("loopguard:time")), true],
  ["y", "Copy the address of this page", () => copyAddress(), true],
];
/** Keys of before, which say once what replaced them. */
const replaced = { r: "Resolve is now Done: press d.", s: "Snooze is now Later: press l." };

async function copyAddress() {
  const isCopied = await copyText(location.href);
  toast(isCopied ? "Address copied." : "The browser did not copy the address.", !isCopied);
}

const goTo = () => [...document.querySelectorAll("[data-go]")];
let goToUntil = 0;

const named = (key) => document.querySelector(`[data-key="${CSS.escape(key)}"]:not(:disabled)`);

/** What the keys do on this page, for the palette: those that need an element have it. */
export function commands() {
  const needs = {
    ".": "#live-new:not([hidden])",
    "/": "[data-focus-key]",
    h: "#attention:not([hidden])",
    p: "#live-pause",
  };
  const isRow = new Set(["j", "k", "o", "x", "X"]);
  const isUsable = ([key, , , always]) =>
    always || (key in needs && document.querySelector(needs[key])) || (!isRow.has(key) && named(key)?.offsetParent);
  return table.filter(isUsable).map(([keys, words, run]) => ({ words, keys, run }));
}

function selectRange() {
  const box = current()?.querySelector("input[type=checkbox]");
  box?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, shiftKey: true }));
}

function press(key) {
  const target = named(key);
  if (!target) return;
  if (target.matches("input, textarea")) target.focus();
  else target.click();
  if (target.matches("summary")) entries(target.parentElement)[0]?.focus();
}

const entries = (menu) => [...menu.querySelectorAll(".sheet :is(a, button)")].filter((entry) => entry.offsetParent);

/** Move through an open menu with the arrows; returns whether it did. */
function moveInMenu(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const menu = step && !isTyping(event.target) && event.target.closest?.("details:is(.pick, .popover)[open]");
  if (!menu) return false;
  const all = entries(menu);
  const at = all.indexOf(document.activeElement);
  all.at(at < 0 ? Math.min(0, step) : (at + step) % all.length)?.focus();
  return true;
}

const rows = () => [...document.querySelectorAll("[data-rows] > tr")].filter((row) => row.offsetParent !== null);
const current = () =>
  document.activeElement?.closest?.("[data-rows] > tr") ?? document.querySelector("[data-rows] > tr.at");

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))];
  for (const row of all) row.classList.toggle("at", row === next);
  (next.querySelector("a.name, a") ?? next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");
}

export function bindKeys() {
  const list = document.getElementById("help-keys");
  if (list) {
    for (const link of goTo()) line(list, `g ${link.dataset.go}`, `Go to ${link.querySelector("span")?.textContent}`);
    for (const [key, words] of table) line(list, key, words);
    line(list, "Ctrl K", "Open the command palette");
    line(list, "Esc", "Close");
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape") return close(event);
    if (moveInMenu(event)) return event.preventDefault();
    if (isTyping(event.target) || document.documentElement.dataset.shortcuts === "off") return;
    if (Date.now() < goToUntil) {
      goToUntil = 0;
      const link = goTo().find((one) => one.dataset.go === event.key);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    if (event.key === "g") {
      goToUntil = Date.now() + 1500;
      return;
    }
    if (event.key in replaced && named(event.key === "r" ? "d" : "l")) {
      toast(replaced[event.key], false);
      delete replaced[event.key];
    }
    const entry = table.find(([key]) => key === event.key);
    if (entry && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      entry[2]();
    }
  });
}

function close(event) {
  const menu = document.querySelector("details.pick[open], details.popover[open]");
  if (menu) {
    menu.open = false;
    menu.querySelector("summary").focus();
    return;
  }
  if (isTyping(event.target)) {
    event.target.blur();
    return;
  }
  document.querySelector("[data-close-panel]")?.click();
}

function line(list, key, words) {
  const item = document.createElement("li"),
    label = document.createElement("span"),
    mark = document.createElement("span");
  label.textContent = words;
  for (const part of key.split(" ")) {
    const one = document.createElement("kbd");
    one.textContent = part;
    mark.append(one, " ");
  }
  item.append(label, mark);
  list.append(item);
}
