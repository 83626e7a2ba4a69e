// Fills the key in once for all snippets of Connect. It is kept in this tab only; pages can be read without it.
const PLACEHOLDER = "lg_…";
const KEY = /^lg_([0-9a-z]{10})_[0-9a-f]{72}$/;
const store = `loopguard-key-${document.body.dataset.project}`;
const box = document.querySelector("[data-connect-key]");
const input = document.getElementById("connect-key");
const problem = document.getElementById("connect-key-error");
const foreign = document.getElementById("connect-key-foreign");
const own = new Set(box?.dataset.publicIds.split(" "));
const snippets = [...document.querySelectorAll("pre")].map((pre) => [pre, pre.textContent]);

function fill(key) {
  for (const [pre, text] of snippets) pre.textContent = text.replaceAll(PLACEHOLDER, key || PLACEHOLDER);
}

const created = box?.dataset.connectKey ?? "";
if (created) sessionStorage.setItem(store, created);
const known = sessionStorage.getItem(store) ?? "";
fill(known);

function check(key) {
  const publicId = KEY.exec(key)?.[1];
  input.setAttribute("aria-invalid", String(key !== "" && !publicId));
  problem.hidden = key === "" || Boolean(publicId);
  foreign.hidden = !publicId || own.has(publicId);
  return Boolean(publicId);
}

if (input) {
  input.value = known;
  if (known) box.closest("details").open = true; // the snippets with the key of this tab
  check(known);
  input.addEventListener("input", () => {
    const key = input.value.trim();
    const isKey = check(key);
    if (isKey) sessionStorage.setItem(store, key);
    else sessionStorage.removeItem(store);
    fill(isKey ? key : "");
  });
}
