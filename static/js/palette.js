// The command palette (Ctrl or Cmd and K): screens, projects, what the keys of this page do, and places to search.
import { commands } from "./keys.js";

const dialog = document.getElementById("palette");
const input = dialog?.querySelector("input");
const list = dialog?.querySelector("[role=listbox]");
const MAX_SHOWN = 12;
let shown = [];
let at = 0;

const linksOf = (selector, words) =>
  [...document.querySelectorAll(selector)].map((link) => ({
    words: `${words}${(link.querySelector("span") ?? link).textContent.trim()}`,
    keys: link.dataset.go ? `g ${link.dataset.go}` : "",
    run: () => link.click(),
  }));

function searches(text) {
  const base = document.body.dataset.project ? `/p/${document.body.dataset.project}` : "";
  if (!base || !text) return [];
  const quoted = encodeURIComponent(/\s/.test(text) ? `"${text}"` : text);
  const go = (words, path) => ({ words, keys: "", run: () => location.assign(base + path) });
  return [
    go(`Search sessions for “${text}”`, `/live?q=${quoted}`),
    go(`Search incidents for “${text}”`, `/incidents?q=${quoted}`),
    go(`Open session “${text}”`, `/session?name=${encodeURIComponent(text)}&or=search`),
  ];
}

/** How well a command fits: all words in it, those at the start of a word first; 0 is no match. */
function score(words, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  const given = words.toLowerCase();
  if (!wanted.every((one) => given.includes(one))) return 0;
  return 1 + wanted.filter((one) => ` ${given}`.includes(` ${one}`)).length;
}

function draw() {
  const text = input.value.trim();
  const all = [...linksOf("[data-go]", "Go to "), ...linksOf("[data-project-link]", "Project "), ...commands()];
  shown = all
    .map((one, place) => ({ one, place, fit: score(one.words, text) }))
    .filter(({ fit }) => fit)
    .sort((a, b) => b.fit - a.fit || a.place - b.place)
    .slice(0, MAX_SHOWN - 3)
    .map(({ one }) => one);
  shown.push(...searches(text));
  at = Math.max(0, Math.min(at, shown.length - 1));
  list.replaceChildren(
    ...shown.map((one, index) => {
      const item = document.createElement("li");
      item.id = `palette-${index}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(index === at));
      item.append(Object.assign(document.createElement("span"), { textContent: one.words }));
      const keys = document.createElement("span");
      for (const key of one.keys.split(" ").filter(Boolean))
        keys.append(Object.assign(document.createElement("kbd"), { textContent: key }), " ");
      item.append(keys);
      item.addEventListener("click", () => run(index));
      return item;
    }),
  );
  input.setAttribute("aria-activedescendant", shown.length ? `palette-${at}` : "");
  document.getElementById(`palette-${at}`)?.scrollIntoView({ block: "nearest" });
}

function run(index) {
  const chosen = shown[index];
  dialog.close();
  chosen?.run();
}

export function openPalette() {
  if (!dialog || document.querySelector("dialog[open]")) return;
  input.value = "";
  at = 0;
  dialog.showModal();
  draw();
}

export function bindPalette() {
  if (!dialog) return;
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    openPalette();
  });
  input.addEventListener("input", () => {
    at = 0;
    draw();
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length) {
      event.preventDefault();
      at = (at + step + shown.length) % shown.length;
      draw();
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(at);
    }
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
