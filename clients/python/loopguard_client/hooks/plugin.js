// Guards the tool calls of this agent with LoopGuard. Written by `loopguard hooks install`; removed by `uninstall`.
import { readFileSync, rmSync, writeFileSync } from "node:fs";

const ADDRESS = "@ADDRESS@";
const KEY_FILE = "@KEY_FILE@";
const LATE_FILE = "@LATE_FILE@"; // until when no hook of this account asks, because an answer was late, and whom
const FAIL_CLOSED = "@FAIL_CLOSED@" === "true";
const SERVER = ADDRESS.split("/api/v1/hooks/")[0];
const ANSWER_MILLISECONDS = 1800;
const LATE_SECONDS = 30;
// Of calls that run, by id, what the model reads with the result; and the sessions whose person knows that LoopGuard has
// not seen everything. A host may load this file more than once.
const { warnings, told } = (globalThis[Symbol.for(ADDRESS)] ??= { warnings: new Map(), told: new Set() });

function isLate(now) {
  try {
    const [until, server] = readFileSync(LATE_FILE, "utf8").trim().split(" ");
    const left = Number(until) - now;
    if (server !== SERVER || !(left <= LATE_SECONDS)) return false;
    if (left > 0) return true;
    late(now); // one hook tries, the others go on
  } catch {
    // no answer was late
  }
  return false;
}

function late(now) {
  try {
    writeFileSync(LATE_FILE, `${now + LATE_SECONDS} ${SERVER}\n`, { mode: 0o600 });
  } catch {
    // the next call waits again
  }
}

async function request(body) {
  const now = Math.floor(Date.now() / 1000);
  if (isLate(now)) return `${SERVER} did not answer in time.`;
  try {
    const lines = readFileSync(KEY_FILE, "utf8").matchAll(/^header = "([\w-]+): (.*)"$/gm); // with tags, if there are any
    const response = await fetch(ADDRESS, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...Object.fromEntries([...lines].map((line) => line.slice(1))) },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MILLISECONDS),
    });
    rmSync(LATE_FILE, { force: true }); // also an error is no late answer
    if (response.status === 401 || response.status === 403) return `${SERVER} does not accept the key in ${KEY_FILE}.`;
    if (!response.ok) return `${SERVER} answered with the status ${response.status}.`;
    return await response.json();
  } catch (error) {
    if (error?.name !== "TimeoutError") {
      rmSync(LATE_FILE, { force: true });
      return `${SERVER} cannot be reached.`;
    }
    late(now);
    return `${SERVER} did not answer in time.`;
  }
}

// Return the answer, or null if LoopGuard is away: its trouble must not stop the work. `to` is where `tell` shows a line.
async function ask(to, body) {
  const answer = await request(body);
  if (typeof answer !== "string") return answer;
  if (!told.has(body.sessionID)) {
    told.add(body.sessionID);
    const what = FAIL_CLOSED ? "do not run" : "run";
    await tell(to, `LoopGuard has not seen everything in this session: ${answer} Calls without an answer ${what}.`);
  }
  return null;
}

