// A what-if beside a form says when the form is no longer the one that was replayed.
const NOT_REPLAYED = ["csrfmiddlewaretoken", "note", "days", "expires", "version", "next", "action"];
const tried = new Map(); // the place of a result → its form, as it was

function written(form) {
  const data = new FormData(form);
  for (const name of NOT_REPLAYED) data.delete(name);
  return new URLSearchParams(data).toString();
}

function compare() {
  for (const [place, { form, text }] of tried) {
    const note = place.querySelector("[data-form-changed]");
    if (note) note.hidden = written(form) === text;
  }
}

export function bindWhatIf() {
  document.addEventListener("htmx:beforeRequest", ({ detail: { elt, target } }) => {
    if (elt.matches(".what-if-start button")) tried.set(target, { form: elt.form, text: written(elt.form) });
  });
  for (const event of ["input", "change", "htmx:afterSettle"]) document.addEventListener(event, compare);
}
