// Copying: browsers have a clipboard only for pages over TLS or of this machine; elsewhere the selection is copied.

/** Copy text; tells whether it worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const before = document.activeElement;
  const box = Object.assign(document.createElement("textarea"), { value: text, className: "off-screen" });
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  before?.focus?.({ preventScroll: true });
  return isCopied;
}
