// Parts of a page that htmx fetches again: [data-refresh-on="session incident"] gets a `refresh` event when such a
// thing changed, with data-refresh-id only for the one of that name.
import { follow, link } from "./link.js";

const REFRESH_GAP_MS = 1_500;
const turns = new Map();
let isPaused = false;

follow((hints, reason) => {
  if (isPaused || document.hidden || (reason === "poll" && link.isOpen && link.brokerIsUp)) return;
  for (const part of document.querySelectorAll("[data-refresh-on]")) {
    const topics = part.dataset.refreshOn.split(" ");
    const id = part.dataset.refreshId;
    const isMeant = (hint) =>
      topics.includes(hint.topic) && (!id || !hint.id || hint.topic !== topics[0] || hint.id === id);
    if (hints === null || hints.some(isMeant)) refreshSoon(part.id, Number(part.dataset.refreshGap ?? 1));
  }
});
// What a person has open or focused is replaced once they leave it.
document.addEventListener("htmx:oobBeforeSwap", ({ detail }) => {
  const part = detail.target;
  if (!part.matches("[data-held-back]:is(:focus-within, :has(details[open]))")) return;
  detail.shouldSwap = false;
  const again = () => document.querySelectorAll("[data-refresh-on]").forEach((one) => refreshSoon(one.id, 1));
  part.addEventListener("focusout", again, { once: true });
});
document.addEventListener("loopguard:paused", (event) => {
  isPaused = event.detail;
});

function refreshSoon(id, gaps) {
  if (!id) return;
  const turn = turns.get(id);
  if (turn) {
    turn.again ||= turn.isSent; // what came after it was sent needs one more
    return;
  }
  const mine = { isSent: false, again: false };
  turns.set(id, mine);
  setTimeout(
    () => {
      mine.isSent = true;
      document.getElementById(id)?.dispatchEvent(new Event("refresh"));
      setTimeout(() => {
        turns.delete(id);
        if (mine.again) refreshSoon(id, gaps);
      }, REFRESH_GAP_MS * gaps);
    },
    (REFRESH_GAP_MS * gaps) / 4,
  );
}
