// The settings of a policy: search, and marks of what was edited. Nothing here is needed to use the form.
const rows = [...document.querySelectorAll(".setting")];
const search = document.querySelector("[data-setting-search]");
const texts = rows.map((row) => `${row.dataset.setting} ${row.firstElementChild.textContent}`.toLowerCase());
const opened = new Set([...document.querySelectorAll("details.setting-group[open]")]);

function markSetting(control) {
  const row = control.closest(".setting");
  if (!row) return;
  const initial = control.options
    ? ([...control.options].find((one) => one.defaultSelected) ?? control.options[0]).value
    : control.defaultValue;
  row.classList.toggle("set", control.value !== "");
  row.classList.toggle("edited", control.value !== initial);
}

function find() {
  const words = search.value
    .toLowerCase()
    .split(/[\s_]+/)
    .filter(Boolean);
  const isShown = (text) => words.every((word) => text.includes(word));
  rows.forEach((row, place) => (row.hidden = !isShown(texts[place])));
  for (const group of document.querySelectorAll(".setting-group")) {
    const hasRows = group.querySelector(".setting:not([hidden])") !== null;
    group.hidden = !hasRows;
    if (group.matches("details")) group.open = words.length ? hasRows : opened.has(group);
  }
}

const reactions = document.getElementById("reactions");
let filled = null;
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[popovertarget=reactions]");
  if (opener) filled = opener.closest(".setting")?.querySelector("input") ?? filled;
  const value = event.target.closest("[data-fill]");
  if (!value || !filled) return;
  filled.value = value.dataset.fill;
  filled.dispatchEvent(new Event("input", { bubbles: true }));
  filled.dispatchEvent(new Event("change", { bubbles: true }));
  reactions.hidePopover();
  filled.focus();
});
// The browser then leads to the reason, instead of an answer above the form. The line above the reason is its error;
// the browser's own bubble would cover that line.
document.addEventListener("htmx:afterSwap", ({ target }) => {
  if (!target.matches(".changes")) return;
  const note = target.closest("form").elements.note;
  if (note) note.required = target.querySelector("[data-needs-reason]") !== null;
});
document.addEventListener(
  "invalid",
  (event) => {
    const { target } = event;
    if (target.name !== "note" || !target.form.querySelector("[data-needs-reason]")) return;
    event.preventDefault();
    target.ariaInvalid = "true";
    target.focus();
  },
  true,
);
document.addEventListener("input", (event) => markSetting(event.target));
search?.addEventListener("input", (event) => {
  event.stopPropagation(); // the form has not changed
  find();
});
search?.addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault();
});
document.addEventListener("change", (event) => markSetting(event.target));
