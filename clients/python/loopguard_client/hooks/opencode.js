// Guards the tool calls of OpenCode and Kilo with LoopGuard. Written by `loopguard hooks install`; removed by `uninstall`.
import { readFileSync } from "node:fs";

const ADDRESS = "@ADDRESS@";
const KEY_FILE = "@KEY_FILE@";
const FAIL_CLOSED = "@FAIL_CLOSED@" === "true";
const MILLISECONDS = 3000;
const warnings = new Map(); // of calls that run, by id: the model reads them with the result

async function ask(body) {
  try {
    const key = /Authorization: (Bearer \S+?)"/.exec(readFileSync(KEY_FILE, "utf8"))[1];
    const response = await fetch(ADDRESS, {
      method: "POST",
      headers: { Authorization: key, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(MILLISECONDS),
    });
    return response.ok ? await response.json() : null;
  } catch {
    return null; // LoopGuard is away: its trouble must not stop the work
  }
}

// Whether a session belongs to a sub-agent, whose prompts no person has written.
async function isOfSubAgent(client, id) {
  try {
    return Boolean((await client.session.get({ path: { id } })).data?.parentID);
  } catch {
    return false;
  }
}

async function end(client, id) {
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
    await ask({
      hook_event_name: "chat.message",
      sessionID: input.sessionID,
      prompt: texts.join("\n"),
      prompt_id: output.message?.id ?? input.messageID,
    });
  },
  "tool.execute.before": async (input, output) => {
    const answer = await ask({
      hook_event_name: "tool.execute.before",
      sessionID: input.sessionID,
      callID: input.callID,
      tool: input.tool,
      args: output.args,
      cwd: directory,
    });
    if (answer === null && FAIL_CLOSED) throw new Error("LoopGuard is away, and this plugin fails closed.");
    if (answer?.stop) await end(client, input.sessionID);
    if (answer?.run === false) throw new Error(answer.message || "The call was not run.");
    if (answer?.message) warnings.set(input.callID, answer.message);
  },
  "tool.execute.after": async (input, output) => {
    const answer = await ask({
      hook_event_name: "tool.execute.after",
      sessionID: input.sessionID,
      callID: input.callID,
      tool: input.tool,
      args: input.args,
      output: output.output,
      cwd: directory,
    });
    if (answer?.stop) await end(client, input.sessionID);
    const message = warnings.get(input.callID) || answer?.message;
    warnings.delete(input.callID);
    if (message) output.output = `${message}\n\n${output.output}`;
  },
});
