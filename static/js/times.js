// Times: the server writes UTC or an age; here they become local time and are kept up to date.
import { relative } from "./durations.js";
import { storePreference } from "./preference.js";

const modes = ["relative", "local", "utc"];
const root = document.documentElement;
const shape = {
  day: "2-digit",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
};
const formats = {};
const moments = new WeakMap();

/** A moment in the zone of the reader or in UTC, as charts write it, with its year unless that is the current one. */
function absolute(moment, isUtc = false) {
  const hasYear = moment.getFullYear() !== new Date().getFullYear();
  const key = `${isUtc}${hasYear}`;
  formats[key] ??= new Intl.DateTimeFormat("en-GB", {
    ...shape,
    ...(hasYear && { year: "numeric" }),
    ...(isUtc && { timeZone: "UTC" }),
  });
  return formats[key].format(moment);
}

/** The moment of an element; its title is written once, because formatting it takes most of the time of a long list. */
function momentOf(element) {
  const known = moments.get(element);
  if (known?.written === element.dateTime) return known.moment;
  const written = element.dateTime;
  const moment = new Date(written);
  if (!Number.isNaN(moment.getTime())) element.title = `${moment.toISOString()}\n${absolute(moment)}`;
  moments.set(element, { written, moment });
  return moment;
}

function write(element, mode, now) {
  const moment = momentOf(element);
  if (Number.isNaN(moment.getTime())) return;
  if (element.dataset.mode === "left" || element.dataset.mode === "offset") return; // not a moment, or counted down
  const own = element.dataset.mode === "absolute" && mode === "relative" ? "local" : mode;
  const text = own === "relative" ? relative((now - moment) / 1000) : absolute(moment, own === "utc");
  if (element.textContent !== text) element.textContent = text;
}

export function writeTimes(within = document) {
  const now = Date.now(),
    mode = root.dataset.time || "relative";
  for (const element of within.querySelectorAll("time[datetime]")) write(element, mode, now);
}

/** Tell the server the zone, so that it reads and writes the ends of time ranges in it. */
function keepZone() {
  const zone = encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone ?? "");
  if (document.cookie.split("; ").includes(`loopguard-zone=${zone}`)) return;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `loopguard-zone=${zone}; path=/; max-age=31536000; samesite=lax${secure}`;
}

export function keepTimes() {
  keepZone();
  writeTimes();
  setInterval(() => {
    if (!document.hidden && (root.dataset.time || "relative") === "relative") writeTimes();
  }, 1000);
  document.addEventListener("htmx:afterSwap", () => writeTimes());
  document.addEventListener("loopguard:rows", () => writeTimes());
  document.addEventListener("loopguard:time", () => {
    storePreference("time", modes[(modes.indexOf(root.dataset.time) + 1) % modes.length]);
    const region = document.getElementById("announcer");
    if (region) region.textContent = `Times: ${root.dataset.time}`;
    writeTimes();
  });
}
