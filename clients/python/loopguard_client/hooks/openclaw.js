let logger = console;

// Put a line into OpenClaw's log: stderr of `agent --local`, and the log of its gateway.
async function tell(_, message) {
  logger.warn(message);
}

const about = (event, ctx) => ({
  sessionID: ctx.sessionId ?? ctx.sessionKey,
  toolCallId: event.toolCallId,
  toolName: event.toolName,
});

async function end(ctx, notice) {
  if (notice) await tell(ctx, notice);
  try {
    const { abortAgentHarnessRun } = await import("openclaw/plugin-sdk/agent-harness-runtime");
    abortAgentHarnessRun(ctx.sessionId);
  } catch {
    // The call is refused all the same, and so is every call that follows.
  }
}

async function beforeReply(event, ctx) {
  if (ctx.trigger !== "user" || ctx.sessionKey?.includes(":subagent:") || !event.cleanedBody) return;
  const { sessionID } = about(event, ctx);
  const prompt = { prompt: event.cleanedBody, prompt_id: ctx.runId };
  await ask(ctx, { hook_event_name: "before_agent_reply", sessionID, ...prompt });
}

async function beforeTool(event, ctx) {
  const answer = await ask(ctx, { hook_event_name: "before_tool_call", ...about(event, ctx), params: event.params });
  if (answer === null && FAIL_CLOSED) {
    return { block: true, blockReason: "LoopGuard is away, and this plugin fails closed." };
  }
  if (answer?.stop) await end(ctx, answer.notice);
  if (answer?.ask) {
    const [title, description] = [`LoopGuard: ${event.toolName}`.slice(0, 80), answer.message.slice(0, 512)];
    return { requireApproval: { title, description, allowedDecisions: ["allow-once", "deny"] } };
  }
  if (answer?.run === false) return { block: true, blockReason: answer.message || "The call was not run." };
  if (answer?.message) warnings.set(event.toolCallId, answer.message);
}

async function afterTool(event, ctx) {
  const { content = [], details } = event.result ?? {};
  if (details?.status === "blocked") return;
  const text = content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
  const answer = await ask(ctx, {
    hook_event_name: "after_tool_call",
    ...about(event, ctx),
    output: { content: text, is_error: event.isError === true || details?.exitCode > 0 },
  });
  if (answer?.stop) await end(ctx, answer.notice);
  const message = warnings.get(event.toolCallId) || answer?.message;
  warnings.delete(event.toolCallId);
  if (message) return { result: { ...event.result, content: [{ type: "text", text: message }, ...content] } };
}

export default {
  id: "loopguard",
  name: "LoopGuard",
  register(api) {
    logger = api.logger ?? console;
    api.on("before_agent_reply", beforeReply);
    api.on("before_tool_call", beforeTool);
    api.on("after_compaction", (event, ctx) =>
      ask(ctx, { hook_event_name: "after_compaction", sessionID: ctx.sessionId ?? ctx.sessionKey }),
    );
    api.registerAgentToolResultMiddleware(afterTool, { runtimes: ["openclaw", "codex"] });
  },
};
