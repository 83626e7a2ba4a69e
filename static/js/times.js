// Times: the server writes UTC or an age; here they become local time and are kept up to date.
import { storePreference } from "./preference.js";

const modes = ["relative", "local", "utc"];
const root = document.documentElement;
const local = new Intl.DateTimeFormat(undefined, {
  day: "2-digit",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
});
const utc = new Intl.DateTimeFormat(undefined, {
  day: "2-digit",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZone: "UTC",
  timeZoneName: "short",
});

/** A moment as seen from now, spelled as the server does: "3 min ago", "now", "in 2 h". */
function age(seconds) {
  const s = Math.round(Math.abs(seconds));
  if (s < 1) return "now";
  let span = `${Math.floor(s / 86400)} d`;
  if (s < 60) span = `${s} s`;
  else if (s < 3600) span = `${Math.floor(s / 60)} min`;
  else if (s < 86400) span = `${Math.floor(s / 3600)} h`;
  return seconds > 0 ? `${span} ago` : `in ${span}`;
}

function write(element, mode, now) {
  const moment = new Date(element.dateTime);
  if (Number.isNaN(moment.getTime())) return;
  const own = element.dataset.mode === "absolute" && mode === "relative" ? "local" : mode;
  const text =
    own === "relative"
      ? Math.abs(now - moment) < 3_600_000 * 24 * 7
        ? age((now - moment) / 1000)
        : local.format(moment)
      : own === "utc"
        ? utc.format(moment)
        : local.format(moment);
  if (element.textContent !== text) element.textContent = text;
  const title = `${moment.toISOString()}\n${local.format(moment)}`;
  if (element.title !== title) element.title = title;
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
