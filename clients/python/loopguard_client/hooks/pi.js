// Show the person a line: on the screen, or as an error of a run without one.
async function tell(ctx, message) {
  if (ctx.hasUI) ctx.ui.notify(message, "warning");
  else console.error(message);
}

export default function (pi) {
  const about = (event, ctx) => ({
    sessionID: ctx.sessionManager.getSessionId(),
    callID: event.toolCallId,
    tool: event.toolName,
    args: event.input,
    cwd: ctx.cwd,
  });

  pi.on("input", async (event, ctx) => {
    if (event.source === "extension" || !event.text) return;
    const sessionID = ctx.sessionManager.getSessionId();
    await ask(ctx, { hook_event_name: "chat.message", sessionID, prompt: event.text });
  });

  pi.on("session_compact", async (event, ctx) => {
    await ask(ctx, { hook_event_name: "session.compacted", sessionID: ctx.sessionManager.getSessionId() });
  });

  pi.on("tool_call", async (event, ctx) => {
    const answer = await ask(ctx, { hook_event_name: "tool.execute.before", ...about(event, ctx) });
    if (answer === null && FAIL_CLOSED) {
      return { block: true, reason: "LoopGuard is away, and this extension fails closed." };
    }
    if (answer?.stop && answer.notice) await tell(ctx, answer.notice);
    if (answer?.run === false) {
      return { block: true, reason: answer.message || "The call was not run.", terminate: answer.stop === true };
    }
    if (answer?.message) warnings.set(event.toolCallId, answer.message);
  });

  pi.on("tool_result", async (event, ctx) => {
    const texts = event.content.filter((part) => part.type === "text").map((part) => part.text);
    const answer = await ask(ctx, {
      hook_event_name: "tool.execute.after",
      ...about(event, ctx),
      output: { content: texts.join("\n"), is_error: event.isError === true },
    });
    if (answer?.stop) {
      if (answer.notice) await tell(ctx, answer.notice);
      ctx.abort();
    }
    const message = warnings.get(event.toolCallId) || answer?.message;
    warnings.delete(event.toolCallId);
    if (message) return { content: [{ type: "text", text: message }, ...event.content] };
  });
}
