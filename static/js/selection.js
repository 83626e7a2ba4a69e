// Selection of rows: the bar of bulk actions appears with the first one; Shift selects a range. A list whose rows are
// selected keeps them, and for ten seconds one that is pointed at or focused; what surrounds it stays current.
let last = null;
let held = "";
let focused = null;
let movedAt = 0;
const IN_HAND_MS = 10_000;

const boxes = () => [...document.querySelectorAll("[data-rows] > tr input[type=checkbox]")];

function count() {
  const all_ = boxes();
  const chosen = all_.filter((box) => box.checked);
  for (const box of all_) {
    const [row, is] = [box.closest("tr"), String(box.checked)];
    if (row.getAttribute("aria-selected") !== is) row.setAttribute("aria-selected", is);
  }
  for (const bar of document.querySelectorAll("[data-bulk]")) {
    bar.hidden = chosen.length === 0;
    const label = bar.querySelector("[data-bulk-count]");
    const isAll = bar.querySelector("[name=matching]")?.checked;
    if (label) label.textContent = isAll ? "All selected" : `${chosen.length} selected`;
  }
  const all = document.querySelector("[data-select-all]");
  if (all) {
    all.checked = chosen.length > 0 && chosen.length === boxes().length;
    all.indeterminate = chosen.length > 0 && !all.checked;
  }
}

function isInHand(part) {
  if (part?.querySelector("[data-rows] input:checked")) return true;
  // After a tap, a touch screen leaves the hover where the finger was.
  const hand = matchMedia("(hover: hover)").matches ? ":hover, :focus-within" : ":focus-within";
  return Date.now() - movedAt < IN_HAND_MS && Boolean(part?.querySelector(`[data-rows]:is(${hand})`));
}

function holdRows(event) {
  const part = event.detail.target;
  if (!part.dataset?.refreshOn || part.querySelector("progress")) return;
  if (isInHand(part)) {
    event.detail.swapOverride = "none";
    held = part.id;
  } else focused = document.activeElement?.closest("[data-rows]") && document.activeElement.getAttribute("href");
}

function releaseRows() {
  const part = held && document.getElementById(held);
  if (!part || isInHand(part)) return;
  held = "";
  part.dispatchEvent(new Event("refresh"));
}

function rowsReplaced() {
  count();
  if (focused) {
    const same = [...document.querySelectorAll("[data-rows] a")].find((one) => one.getAttribute("href") === focused);
    same?.focus({ preventScroll: true });
  }
  focused = null;
}

export function bindSelection() {
  document.addEventListener("htmx:beforeSwap", holdRows);
  document.addEventListener("htmx:afterSwap", rowsReplaced);
  for (const name of ["pointermove", "keydown"]) document.addEventListener(name, () => (movedAt = Date.now()));
  setInterval(releaseRows, 500);
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (box.matches?.("[data-select-all]")) {
      for (const one of boxes()) one.checked = box.checked;
      return count();
    }
    if (!box.matches?.("[data-rows] > tr input[type=checkbox]")) return undefined;
    const all = boxes();
    if (event.shiftKey && last && all.includes(last)) {
      const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
      for (const one of all.slice(from, to + 1)) one.checked = box.checked;
    }
    last = box;
    return count();
  });
  document.addEventListener("change", (event) => event.target.matches("[data-bulk] [name=matching]") && count());
  document.addEventListener("loopguard:rows", count);
  if (boxes().length) count();
}
