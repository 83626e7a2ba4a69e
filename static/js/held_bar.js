// Held calls in the administration: a bar that leads to them, as its pages have none of the console's scripts.
import { keepFetching, writeCount } from "./attention_feed.js";
import { left } from "./durations.js";

const bar = document.getElementById("held-bar");
const speaker = document.getElementById("held-bar-announcer");
const [words, link] = [bar.querySelector("[data-words]"), bar.querySelector("a")];
let calls = [];
let more = "";
// Each call is spoken once in this tab, not on every page.
const SPOKEN = "loopguard-held-spoken";
const MAX_SPOKEN = 100;
const known = new Set(JSON.parse(sessionStorage.getItem(SPOKEN) ?? "[]"));

function show({ held, held_count: heldCount }) {
  const shownAt = performance.now() / 1000;
  calls = held.map((one) => ({ ...one, until: shownAt + one.seconds_left }));
  more = heldCount.count > (held[0]?.count ?? 0) ? `, and ${heldCount.count - held[0].count} more` : "";
  bar.hidden = !calls.length;
  writeCount(heldCount);
  const fresh = calls.filter((one) => !known.has(one.id));
  for (const one of fresh) known.add(one.id);
  sessionStorage.setItem(SPOKEN, JSON.stringify([...known].slice(-MAX_SPOKEN)));
  tick();
  if (fresh.length) speaker.textContent = `Held call: ${sentence(fresh[0])}.`;
}

const sentence = ({ what, until }) => `${what}, ${left(until - performance.now() / 1000)}`;

function tick() {
  const [first] = calls;
  if (!first) return;
  words.textContent = sentence(first) + more;
  link.href = first.url;
}

const soon = keepFetching(() => bar.dataset.url, show);
soon(0);
setInterval(() => {
  tick();
  if (calls.some(({ until }) => until <= performance.now() / 1000 - 1)) soon();
}, 500);
