// Completion of the filter: fields, then their values. Without this script the filter is a plain form.
const input = document.getElementById("filter");
const list = document.getElementById("filter-options");
const SHOWN = 12;
const WAIT_MS = 120;

const known = new Map(); // answers of the server by their query
let fields = null;
let options = [];
let active = -1;
let timer = 0;
let turn = 0;

/** The term under the caret: where its text begins, its field if it has one, and the part to complete. */
function termAtCaret() {
  const text = input.value.slice(0, input.selectionStart);
  let start = 0;
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\" && isQuoted) at += 1;
    else if (text[at] === '"') isQuoted = !isQuoted;
    else if (!isQuoted && /\s/.test(text[at])) start = at + 1;
  }
  const written = text.slice(start);
  const [, minus, name, rest] = /^(-?)(?:([A-Za-z_]\w*):)?(.*)$/s.exec(written);
  if (name === undefined) return { start: start + minus.length, field: null, part: rest };
  const field = fields.find((one) => one.name === name.toLowerCase());
  const comma = rest.lastIndexOf(",");
  const operator = /^[<>]=?/.exec(rest.slice(comma + 1))?.[0] ?? "";
  const from = start + minus.length + name.length + 1 + comma + 1 + operator.length;
  return { start: from, field: field ?? { values: [] }, part: text.slice(from).replace(/^"/, "") };
}

async function answerOf(query) {
  const answer = await fetch(`${input.closest("[data-filter]").dataset.filter}?${query}`, {
    headers: { Accept: "application/json" },
    signal: AbortSignal.timeout(5_000),
  });
  if (!answer.ok || answer.redirected) throw new Error(`answered ${answer.status}`);
  return answer.json();
}

/** The listed values of all fields that begin with a text, each with its field; yes and no say nothing without it. */
function valuesThatBegin(wanted) {
  return fields.flatMap((field) =>
    field.values
      .filter(([value, words]) => [value, words.toLowerCase()].some((text) => text.startsWith(wanted)))
      .filter(([value]) => value !== "yes" && value !== "no")
      .map(([value, words]) => ({
        text: `${field.name}:${value}`,
        shown: `${field.name}:${value}`,
        help: words || field.help,
        isValue: true,
      })),
  );
}

async function choices({ field, part }) {
  const wanted = part.toLowerCase();
  if (field === null) {
    const near = fields.filter((one) => [one.name, one.help.toLowerCase()].some((text) => text.startsWith(wanted)));
    const named = near.map((one) => ({ text: `${one.name}:`, shown: `${one.name}:`, help: one.help }));
    return wanted.length < 2 ? named : [...named, ...valuesThatBegin(wanted)];
  }
  if (!field.completes) {
    const near = field.values.filter(([value]) => value.startsWith(wanted));
    return near.map(([value, words]) => ({ text: value, shown: value, help: words, isValue: true }));
  }
  const query = new URLSearchParams({ field: field.name, text: part });
  const key = String(query);
  if (!known.has(key)) known.set(key, (await answerOf(query)).values);
  return known.get(key).map((value) => ({ text: quoted(value), shown: value, help: "", isValue: true }));
}

function quoted(value) {
  const isPlain = value !== "" && !/[\s,"*]|\.\.|^[<>]/.test(value);
  return isPlain ? value : `"${value.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}

async function offer() {
  const mine = (turn += 1);
  let term = null;
  let found = [];
  try {
    fields ??= (await answerOf("")).fields;
    term = termAtCaret();
    found = await choices(term);
  } catch {
    // Without an answer nothing is offered.
  }
  if (mine !== turn || document.activeElement !== input) return;
  const isComplete = found.length === 1 && found[0].isValue && found[0].shown === term.part;
  show(isComplete ? [] : found.slice(0, SHOWN), term);
}

function offerSoon() {
  clearTimeout(timer);
  timer = setTimeout(offer, WAIT_MS);
}

function show(found, term) {
  options = found.map((one) => ({ ...one, term }));
  active = -1;
  list.replaceChildren(
    ...options.map((one, place) => {
      const item = document.createElement("li");
      item.id = `filter-option-${place}`;
      item.role = "option";
      const name = document.createElement("span");
      name.className = "mono";
      name.textContent = one.shown;
      const help = document.createElement("span");
      help.className = "sub";
      help.textContent = one.help;
      item.append(name, help);
      return item;
    }),
  );
  list.hidden = options.length === 0;
  input.setAttribute("aria-expanded", String(!list.hidden));
  mark();
}

function mark() {
  [...list.children].forEach((item, place) => {
    item.setAttribute("aria-selected", String(place === active));
    if (place === active) item.scrollIntoView({ block: "nearest" });
  });
  if (active < 0) input.removeAttribute("aria-activedescendant");
  else input.setAttribute("aria-activedescendant", `filter-option-${active}`);
}

function close() {
  turn += 1;
  clearTimeout(timer);
  show([], null);
}

function accept({ term, text, isValue }) {
  const rest = input.value.slice(input.selectionStart);
  const before = input.value.slice(0, term.start);
  const added = text + (isValue && !rest.startsWith(" ") ? " " : "");
  input.value = before + added + rest;
  const caret = before.length + added.length + (isValue && rest.startsWith(" ") ? 1 : 0);
  input.setSelectionRange(caret, caret);
  close();
  if (!isValue) offer();
}

function bind() {
  input.role = "combobox";
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", list.id);
  input.setAttribute("aria-expanded", "false");
  input.addEventListener("input", offerSoon);
  input.addEventListener("click", offerSoon);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (list.hidden) return offer();
      const count = options.length + 1; // with a place for none
      active = ((active + 1 + step + count) % count) - 1;
      mark();
    } else if ((event.key === "Enter" || event.key === "Tab") && active >= 0) {
      event.preventDefault();
      accept(options[active]);
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      close();
    }
    return undefined;
  });
  // The focus stays in the text.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const place = [...list.children].indexOf(event.target.closest("li"));
    if (place >= 0) accept(options[place]);
  });
  // What is typed but not applied yet goes along with a new range.
  document.addEventListener("submit", (event) => {
    const copy = event.target.querySelector("[data-copy-filter]");
    if (copy) copy.value = input.value;
  });
}

if (input && list) bind();
