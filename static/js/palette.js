// The command palette (Ctrl or Cmd and K): what this page does, where to go, settings, and the search.
import { commands } from "./keys.js";

const dialog = document.getElementById("palette");
const input = dialog?.querySelector("input");
const list = dialog?.querySelector("[role=listbox]");
const GROUPS = ["Do", "Go to", "Settings", "In calls and results"];
const MAX_COMMANDS = 14;
const WAIT_MS = 120;
let shown = [];
let found = { text: "", items: [] };
let asked;
let at = 0;

const linksOf = (selector, words) =>
  [...document.querySelectorAll(selector)].map((link) => ({
    group: "Go to",
    words: `${words}${(link.querySelector("span") ?? link).textContent.trim()}`,
    keys: link.dataset.go ? `g ${link.dataset.go}` : "",
    run: () => link.click(),
  }));

function searches(text) {
  const project = document.body.dataset.project;
  if (!project || !text) return [];
  const run = () => location.assign(`/p/${project}/search?q=${encodeURIComponent(text)}`);
  return [{ group: "In calls and results", words: `Search for “${text}”`, keys: "", run }];
}

/** What the server knows by name: agents, models, tools, sessions, loops, members, settings and more screens. */
async function ask(text) {
  const project = document.body.dataset.project;
  if (!project || !text) return;
  try {
    const answer = await fetch(`/p/${project}/palette?q=${encodeURIComponent(text)}`, {
      headers: { Accept: "application/json" },
    });
    if (!answer.ok || text !== input.value.trim()) return;
    found = { text, items: (await answer.json()).items };
    draw();
  } catch {
    // Without the server, the page's own commands stay.
  }
}

function named(text, known) {
  if (found.text !== text) return [];
  return found.items
    .filter(({ url }) => !known.has(url))
    .map(({ group, words, url }) => ({
      group: { Do: "Do", Setting: "Settings" }[group] ?? "Go to",
      words: ["Do", "Go to", "Setting"].includes(group) ? words : `${group} ${words}`,
      keys: "",
      run: () => location.assign(url),
    }));
}

/** How well a command fits: all words in it, those at the start of a word first; 0 is no match. */
function score(words, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  const given = words.toLowerCase();
  if (!wanted.every((one) => given.includes(one))) return 0;
  return 1 + wanted.filter((one) => ` ${given}`.includes(` ${one}`)).length;
}

function heading(words) {
  const item = Object.assign(document.createElement("li"), { className: "sheet-title", textContent: words });
  item.setAttribute("role", "presentation");
  return item;
}

function option(one, index) {
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
}

function draw() {
  const text = input.value.trim();
  const ofPage = commands().map((one) => ({ ...one, group: "Do" }));
  const own = [...ofPage, ...linksOf("[data-go]", ""), ...linksOf("[data-project-link]", "Project ")]
    .map((one, place) => ({ one, place, fit: score(one.words, text) }))
    .filter(({ fit }) => fit)
    .sort((a, b) => b.fit - a.fit || a.place - b.place)
    .slice(0, MAX_COMMANDS)
    .map(({ one }) => one);
  const links = [...document.querySelectorAll("[data-go]")].map((link) => link.getAttribute("href"));
  const all = [...own, ...named(text, new Set(links)), ...searches(text)];
  shown = GROUPS.flatMap((group) => all.filter((one) => one.group === group));
  at = Math.max(0, Math.min(at, shown.length - 1));
  list.replaceChildren(
    ...shown.flatMap((one, index) => {
      const item = option(one, index);
      return one.group === shown[index - 1]?.group ? [item] : [heading(one.group), item];
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
    clearTimeout(asked);
    asked = setTimeout(ask, WAIT_MS, input.value.trim());
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
