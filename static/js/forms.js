// What was typed survives: drafts of forms in this tab until the server has answered them, no second submission by a
// double click, nothing sent into a lost network, and no reload of a half filled page when the sign-in has ended.

const PREFIX = "loopguard-draft:";
const SENDING_MS = 8_000;
const MAX_AGE_MS = 24 * 3_600_000;
const TYPED = "textarea, input:not([type=hidden], [type=password], [type=file], [type=checkbox], [type=radio])";

const forms = () => [...document.querySelectorAll("main form[method=post]")];
const typed = (form) => [...form.elements].filter((one) => one.matches(TYPED) && one.name);
const keyOf = (form) =>
  `${PREFIX}${location.pathname}${location.search}|${form.getAttribute("action")}|${forms().indexOf(form)}`;

function isChanged(control) {
  if (control.matches("select")) return [...control.options].some((one) => one.selected !== one.defaultSelected);
  if (control.matches("[type=checkbox], [type=radio]")) return control.checked !== control.defaultChecked;
  return control.matches(TYPED) && control.value !== control.defaultValue;
}

const isDirty = () => forms().some((form) => [...form.elements].some(isChanged));

function save(form) {
  const values = typed(form).map((one) => [one.name, one.value, one.value !== one.defaultValue]);
  try {
    if (values.some(([, , changed]) => changed))
      sessionStorage.setItem(keyOf(form), JSON.stringify({ at: Date.now(), values }));
    else sessionStorage.removeItem(keyOf(form));
  } catch {
    // The storage is full or forbidden.
  }
}

function drafts() {
  return Object.keys(sessionStorage)
    .filter((key) => key.startsWith(PREFIX))
    .map((key) => [key, JSON.parse(sessionStorage.getItem(key))]);
}

/** The form that the server has answered or kept, named by the first half of its CSRF token; see answered_forms.py. */
function answeredForm() {
  const id = /(?:^|; )loopguard-answered=(\w+)/.exec(document.cookie)?.[1];
  return document.querySelector("[data-kept-form]")?.dataset.keptForm ?? id;
}

/** A form that was kept at the sign-in lists what was entered, without what its page had filled in. */
function hideUnchanged(values) {
  for (const [name, , isChanged] of values)
    for (const part of document.querySelectorAll(`[data-kept="${CSS.escape(name)}"]`)) part.hidden = !isChanged;
}

let isRestoring = false;

function fill(control, value) {
  control.value = value;
  control.dispatchEvent(new Event("input", { bubbles: true }));
}

function restore() {
  isRestoring = true;
  const answered = answeredForm();
  for (const [key, { sent, at, values }] of drafts()) {
    const isAnswered = sent && sent === answered;
    if (isAnswered) {
      hideUnchanged(values);
      document.cookie = "loopguard-answered=; path=/; max-age=0"; // its form may be sent again after a way back
    }
    if (isAnswered || Date.now() - at > MAX_AGE_MS) sessionStorage.removeItem(key);
  }
  for (const form of forms()) {
    const draft = JSON.parse(sessionStorage.getItem(keyOf(form)) ?? "null");
    if (!draft) continue;
    const controls = typed(form);
    const restored = [];
    draft.values.forEach(([name, value, changed], index) => {
      const control = controls[index];
      if (!changed || control?.name !== name || control.value === value) return;
      fill(control, value);
      restored.push(control);
    });
    if (restored.length) note(form, restored);
  }
  isRestoring = false;
}

/** What was rejected is edited: its error no longer applies, nor does that of the form once it was the last one; what
 * stands below does not move. */
function clearError({ form, name }) {
  const rejected = [...form.elements].filter((one) => one.name === name && one.ariaInvalid === "true");
  for (const one of rejected) {
    one.ariaInvalid = null;
    const place = one.closest(".setting") ?? one.parentElement;
    for (const error of place.querySelectorAll(":scope > .field-error")) error.style.visibility = "hidden";
  }
  if (rejected.length && !document.querySelector("main [aria-invalid=true]"))
    for (const error of document.querySelectorAll("[data-form-error]")) error.style.visibility = "hidden";
}

function note(form, restored) {
  const line = document.createElement("p");
  line.className = "banner warn draft";
  line.setAttribute("role", "status");
  const button = Object.assign(document.createElement("button"), { type: "button", className: "btn small" });
  button.textContent = "Discard";
  button.addEventListener("click", () => {
    sessionStorage.removeItem(keyOf(form));
    for (const control of restored) fill(control, control.defaultValue);
    line.remove();
  });
  line.append("Your earlier input is restored. ", button);
  form.prepend(line);
}

/** Beside the button, as a toast would cover what was typed; until the browser is online. */
function sayOffline(place) {
  const line = Object.assign(document.createElement("p"), { className: "field-error offline" });
  line.setAttribute("role", "alert");
  line.textContent = "You are offline. Nothing was sent, and your input is kept.";
  document.querySelector(".offline")?.remove();
  place.append(line);
  line.scrollIntoView({ block: "nearest" });
  addEventListener("online", () => line.remove(), { once: true });
}

/** Show a line for a while, with a way to `undo` if there is one; an error replaces the one before. */
export function toast(text, isError = true, undo = null) {
  const one = document.createElement("div");
  one.className = isError ? "toast error" : "toast";
  one.setAttribute("role", "status");
  one.append(Object.assign(document.createElement("span"), { textContent: text }));
  if (undo) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "btn small" });
    button.dataset.key = "u";
    button.append("Undo", Object.assign(document.createElement("kbd"), { textContent: "u" }));
    button.addEventListener("click", () => {
      one.remove();
      undo();
    });
    one.append(button);
  }
  const toasts = document.getElementById("toasts");
  if (isError) toasts?.querySelector(".error")?.remove();
  toasts?.append(one);
  setTimeout(() => one.remove(), undo ? 10_000 : isError ? 8_000 : 6_000);
}

export function bindForms() {
  // When whatever follows the input of a form listens.
  document.addEventListener("DOMContentLoaded", () => setTimeout(restore));
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (!form?.matches?.("main form[method=post]")) return;
    clearError(event.target);
    if (!isRestoring && event.target.matches(TYPED)) save(form);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    if (!navigator.onLine) {
      event.preventDefault();
      sayOffline(event.submitter?.parentElement ?? form);
      return;
    }
    if (Date.now() - Number(form.dataset.sentAt ?? 0) < SENDING_MS) {
      event.preventDefault();
      return;
    }
    form.dataset.sentAt = Date.now();
    const draft = sessionStorage.getItem(keyOf(form));
    const sent = form.elements.csrfmiddlewaretoken?.value.slice(0, 32);
    if (draft) sessionStorage.setItem(keyOf(form), JSON.stringify({ ...JSON.parse(draft), sent }));
  });
  addEventListener("pageshow", () => {
    for (const form of document.forms) delete form.dataset.sentAt;
  });
  let isToldOnce = false; // every part of the page finds out
  document.addEventListener("loopguard:signed-out", () => {
    if (!isDirty()) location.reload();
    else if (!isToldOnce) toast("You are signed out. Your input is kept: submit it and sign in to send it.");
    isToldOnce = true;
  });
}
