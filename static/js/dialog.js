// A link to a page that is also a dialog opens it in place; without scripts, it leads to the page.
const PART = "[data-dialog-page]";

async function open(link) {
  const response = await fetch(link.href, { headers: { Accept: "text/html" } });
  const part = response.ok && new DOMParser().parseFromString(await response.text(), "text/html").querySelector(PART);
  if (!part) {
    location.assign(link.href);
    return;
  }
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(document.importNode(part, true));
  globalThis.htmx.process(dialog);
  for (const hidden of dialog.querySelectorAll("[data-without-script]")) hidden.remove();
  dialog.setAttribute("aria-labelledby", "dialog-title");
  dialog.showModal();
  dialog.querySelector("input:not([type=hidden]), select")?.focus();
}

export function bindDialogs() {
  for (const hidden of document.querySelectorAll(`${PART} [data-without-script]`)) hidden.remove();
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-dialog]");
    const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button);
    if (link && isPlain) {
      event.preventDefault();
      open(link).catch(() => location.assign(link.href));
    }
    const dialog = event.target.closest("[data-close-dialog]")?.closest("dialog");
    if (dialog) {
      event.preventDefault();
      dialog.close();
    }
  });
  // A closed dialog sends no further requests.
  document.getElementById("dialog")?.addEventListener("close", ({ target }) => {
    target.removeAttribute("aria-labelledby");
    target.replaceChildren();
  });
}
