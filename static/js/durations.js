// Times in words, as detection/engine/durations.py writes them; tests/browser/durations.json has cases for both.
const units = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

/** A span of time: "41 s", "2 min 5 s", "12 min", "9 d"; a short one in its largest unit only. */
export function span(seconds, isShort = false) {
  let rest = Math.max(0, Math.floor(seconds + 0.5));
  const parts = [];
  for (const [name, length] of units) {
    const count = Math.floor(rest / length);
    rest %= length;
    if (count) parts.push(`${count} ${name}`);
    // A second unit is given only beside fewer than five of the first.
    if (parts.length && (parts.length > 1 || isShort || !count || count >= 5)) break;
  }
  return parts.join(" ") || "0 s";
}

/** A span with tenths of a second below two minutes. */
export const precise = (seconds) => (seconds < 120 ? `${Math.max(0, seconds).toFixed(1)} s` : span(seconds));

/** A moment as seen from now: "3 min ago", "just now", "now", "in 2 h". */
export function relative(secondsAgo) {
  if (Math.floor(Math.abs(secondsAgo) + 0.5) === 0) return secondsAgo >= 0 ? "just now" : "now";
  const words = span(Math.abs(secondsAgo), true);
  return secondsAgo > 0 ? `${words} ago` : `in ${words}`;
}

/** The time until a deadline. */
export const left = (seconds) => (seconds > 0 ? `${span(Math.ceil(seconds))} left` : "time is up");
