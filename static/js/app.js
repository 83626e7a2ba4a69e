// Loaded on every page: keyboard shortcuts, times in the reader's zone, selections, copying. Live updates: live.js.
// Nothing here is needed to use a page, and nothing writes markup from data.
import { bindKeys } from "./keys.js";
import { keepTimes } from "./times.js";
import { bindSelection } from "./selection.js";
import { copyText } from "./copy.js";
import { bindForms } from "./forms.js";
import { bindPalette, openPalette } from "./palette.js";
import { bindNotifications } from "./notifications.js";
import { bindDialogs } from "./dialog.js";
import { bindWhatIf } from "./what_if.js";

bindKeys();
keepTimes();
bindSelection();
bindNotifications();
bindPalette();
bindDialogs();
bindWhatIf();

document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const source = copy.dataset.copy ? document.getElementById(copy.dataset.copy)?.textContent : location.href;
    copyText(source.trim()).then((isCopied) => announce(isCopied ? "Copied" : "Not copied", copy));
  }
  if (event.target.closest("[data-open-palette]") && !event.ctrlKey && !event.metaKey) {
    event.preventDefault(); // without scripts, the link leads to the search
    openPalette();
  }
  if (event.target.closest("[data-open-help]")) document.getElementById("help")?.showModal();
  // A click outside closes open menus.
  for (const menu of document.querySelectorAll("details.pick[open], details.popover[open]"))
    if (!menu.contains(event.target)) menu.open = false;
  event.target.closest("details.popover a[download]")?.closest("details").removeAttribute("open");
  openRow(event);
  const tab = event.target.closest("[data-tab]");
  if (tab) chooseTab(tab);
});

const question = document.getElementById("confirm");
let asked = null; // the form and the button that wait for the answer
document.addEventListener("submit", (event) => {
  const [form, button] = [event.target, event.submitter];
  if (!form.dataset.confirm || !question || asked?.isConfirmed) return;
  event.preventDefault();
  asked = { form, button };
  document.getElementById("confirm-text").textContent = form.dataset.confirm;
  question.querySelector("[value=yes]").replaceChildren(...(button?.cloneNode(true).childNodes ?? ["OK"]));
  question.returnValue = "";
  question.showModal();
});
document.addEventListener("htmx:beforeSwap", (event) => {
  if (question?.open) event.detail.shouldSwap = false; // the form must still be there
});
question?.addEventListener("close", () => {
  if (question.returnValue !== "yes") return;
  asked.isConfirmed = true;
  asked.form.requestSubmit(asked.button);
  asked = null;
});

document.addEventListener("change", (event) => {
  if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
});

/**
 * A click beside a box is for the box. A row opens where its name leads, except by a control of its own or while text
 * is selected.
 */
function openRow({ target, defaultPrevented }) {
  const row = target.closest("[data-rows] > tr");
  const box = target.closest("td.check, th.check")?.querySelector("input");
  if (box && box !== target) return box.click();
  const isControl = target.closest("a, button, input, label, select, summary, form, details, textarea");
  if (!row || isControl || target.closest("td")?.querySelector("form, details") || defaultPrevented) return undefined;
  if (!getSelection().toString()) row.querySelector("a.name")?.click();
  return undefined;
}

function chooseTab(tab) {
  for (const other of tab.parentElement.querySelectorAll("[data-tab]")) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    const panel = document.getElementById(other.dataset.tab);
    if (panel) panel.hidden = !chosen;
  }
}

/** On a narrow screen, the tabs scroll sideways: bring the current one into sight, also after they were replaced. */
function showCurrentTabs() {
  for (const tab of document.querySelectorAll(".tabs [aria-current]")) {
    const row = tab.parentElement;
    if (row.scrollWidth > row.clientWidth && !row.dataset.shown)
      row.scrollLeft = tab.offsetLeft - row.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
    row.dataset.shown = "yes";
  }
}

export function announce(text, near) {
  const region = document.getElementById("announcer");
  if (region) region.textContent = text;
  if (near) {
    const before = near.textContent;
    near.textContent = text;
    setTimeout(() => {
      near.textContent = before;
    }, 1500);
  }
}

for (const toast of document.querySelectorAll(".toast:not(.error)"))
  setTimeout(() => toast.remove(), toast.querySelector("form, a") ? 10000 : 6000);
for (const hidden of document.querySelectorAll("[data-needs-script]")) hidden.hidden = false;
showCurrentTabs();
document.addEventListener("htmx:afterSettle", showCurrentTabs);
bindForms(); // after the questions of confirmation
