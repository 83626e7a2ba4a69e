// Fetches what is announced on every page after each change: badges and held calls.
import { follow, link, noteSignIn } from "./link.js";

const SOON_MS = 60;
const POLL_MS = 700;

/**
 * Fetch soon after a change and show the answer.
 *
 * @param address Returns the address to fetch.
 * @param show Gets the answer.
 * @param gaps Milliseconds until a topic other than held calls is fetched, which only a page in front does.
 * @returns {(ms?: number) => void} Fetches without a change.
 */
export function keepFetching(address, show, gaps = {}) {
  const state = { timer: 0, dueAt: Infinity, isFetching: false, wants: false };

  function soon(ms = SOON_MS) {
    const at = performance.now() + ms * (0.7 + Math.random() * 0.6);
    if (at >= state.dueAt) return;
    clearTimeout(state.timer);
    state.dueAt = at;
    state.timer = setTimeout(fetchNow, at - performance.now());
  }

  async function fetchNow() {
    state.dueAt = Infinity;
    if (state.isFetching) {
      state.wants = true;
      return;
    }
    state.isFetching = true;
    try {
      const answer = await fetch(address(), {
        headers: { Accept: "application/json" },
        signal: AbortSignal.timeout(8_000),
      });
      noteSignIn(answer);
      if (answer.ok && !answer.redirected) show(await answer.json());
    } catch {
      // The next hint or poll tries again.
    }
    state.isFetching = false;
    if (state.wants) {
      state.wants = false;
      soon();
    }
  }

  follow((hints, reason) => {
    if (reason === "resync") soon();
    else if (reason === "poll") {
      if (!document.hidden || !link.isOpen) soon(POLL_MS);
    } else
      for (const { topic } of hints)
        if (topic === "approval" || topic === "held") soon();
        else if (topic in gaps && !document.hidden) soon(gaps[topic]);
  });
  document.addEventListener("visibilitychange", () => document.hidden || soon());
  return soon;
}

/** Write the number of held calls before the title of the page. */
export function writeCount({ count, text }) {
  const title = document.title.replace(/^\(\d+\+?\) /, "");
  const wanted = count ? `(${text}) ${title}` : title;
  if (document.title !== wanted) document.title = wanted;
}
