// Guards the tool calls of OpenCode and Kilo with LoopGuard. Written by `loopguard hooks install`; removed by `uninstall`.
import { readFileSync, rmSync, writeFileSync } from "node:fs";

const ADDRESS = "@ADDRESS@";
const KEY_FILE = "@KEY_FILE@";
const LATE_FILE = "@LATE_FILE@"; // until when no hook of this account asks, because an answer was late, and whom
const FAIL_CLOSED = "@FAIL_CLOSED@" === "true";
const SERVER = ADDRESS.split("/api/v1/hooks/")[0];
const ANSWER_MILLISECONDS = 1800;
const LATE_SECONDS = 30;
const warnings = new Map(); // of calls that run, by id: the model reads them with the result
const told = new Set(); // sessions whose person knows that LoopGuard has not seen everything

// Show the person a line: above the screen, or below the output of `run`, which has no screen.
async function tell(client, message) {
  if (process.argv.includes("run")) console.error(message);
  try {
    await client.tui.showToast({ body: { title: "LoopGuard", message, variant: "warning" } });
  } catch {
    // without a screen
  }
}

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
    const key = /Authorization: (Bearer \S+?)"/.exec(readFileSync(KEY_FILE, "utf8"))[1];
    const response = await fetch(ADDRESS, {
      method: "POST",
      headers: { Authorization: key, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_MILLISECONDS),
    });
    if (response.status === 401 || response.status === 403) return `${SERVER} does not accept the key in ${KEY_FILE}.`;
    if (!response.ok) return `${SERVER} answered with the status ${response.status}.`;
    const answer = await response.json();
    rmSync(LATE_FILE, { force: true });
    return answer;
  } catch (error) {
    if (error?.name !== "TimeoutError") return `${SERVER} cannot be reached.`;
    late(now);
    return `${SERVER} did not answer in time.`;
  }
}

// Return the answer, or null if LoopGuard is away: its trouble must not stop the work.
async function ask(client, body) {
  const answer = await request(body);
  if (typeof answer !== "string") return answer;
  if (!told.has(body.sessionID)) {
    told.add(body.sessionID);
    const what = FAIL_CLOSED ? "do not run" : "run";
    await tell(client, `LoopGuard has not seen everything in this session: ${answer} Calls without an answer ${what}.`);
  }
  return null;
}

// Whether a session belongs to a sub-agent, whose prompts no person has written.
async function isOfSubAgent(client, id) {
  try {
    return Boolean((await client.session.get({ path: { id } })).data?.parentID);
  } catch {
    return false;
  }
}

async function end(client, id, notice) {
  if (notice) await tell(client, notice);
  try {
    await client.session.abort({ path: { id } });
  } catch {
    // The call is refused all the same, and so is every call that follows.
  }
}

export const LoopGuard = async ({ directory, client }) => ({
  "chat.message": async (input, output) => {
    const texts = output.parts.filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text);
    if (texts.length === 0 || (await isOfSubAgent(client, input.sessionID))) return;
    await ask(client, {
      hook_event_name: "chat.message",
      sessionID: input.sessionID,
      prompt: texts.join("\n"),
      prompt_id: output.message?.id ?? input.messageID,
    });
  },
  "tool.execute.before": async (input, output) => {
    const answer = await ask(client, {
      hook_event_name: "tool.execute.before",
      sessionID: input.sessionID,
      callID: input.callID,
      tool: input.tool,
      args: output.args,
      cwd: directory,
    });
    if (answer === null && FAIL_CLOSED) throw new Error("LoopGuard is away, and this plugin fails closed.");
    if (answer?.stop) await end(client, input.sessionID, answer.notice);
    if (answer?.run === false) throw new Error(answer.message || "The call was not run.");
    if (answer?.message) warnings.set(input.callID, answer.message);
  },
  "tool.execute.after": async (input, output) => {
    const answer = await ask(client, {
      hook_event_name: "tool.execute.after",
      sessionID: input.sessionID,
      callID: input.callID,
      tool: input.tool,
      args: input.args,
      output: output.output,
      cwd: directory,
    });
    if (answer?.stop) await end(client, input.sessionID, answer.notice);
    const message = warnings.get(input.callID) || answer?.message;
    warnings.delete(input.callID);
    if (message) output.output = `${message}\n\n${output.output}`;
  },
});
