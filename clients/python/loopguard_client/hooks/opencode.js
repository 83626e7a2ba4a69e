// Show the person a line: above the screen, or below the output of `run`, which has no screen.
async function tell(client, message) {
  if (process.argv.includes("run")) console.error(message);
  try {
    await client.tui.showToast({ body: { title: "LoopGuard", message, variant: "warning" } });
  } catch {
    // without a screen
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
