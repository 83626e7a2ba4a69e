let session = ""; // of the person; sub-agents run in it under names of their own
let folder = "";
let log;
const endings = new Map(); // what the person reads of runs that end before their next request, by agent
const refused = new Set(); // ids of calls that do not run, which Cline reports with a result nevertheless

// Put a line into Cline's log: a plugin has no way to its screen but the results of tools.
async function tell(_, message) {
  log?.log(message);
}

function about({ snapshot, toolCall, input }) {
  return {
    ...place(snapshot),
    callID: toolCall.toolCallId,
    tool: toolCall.toolName,
    args: input,
    cwd: folder,
  };
}

function place({ agentId, conversationId, parentAgentId }) {
  const sessionID = session || conversationId || agentId;
  return parentAgentId ? { sessionID, agent_id: agentId } : { sessionID };
}

// Return the text that the person has written for this run, without the frame around it.
function promptOf({ messages }) {
  const last = messages.at(-1);
  if (last?.role !== "user") return "";
  const text = last.content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
  return text.replace(/^\s*<user_input[^>]*>/, "").replace(/<\/user_input>\s*$/, "");
}

// Return a result as its text; of commands, what they have printed.
function outputOf({ output, isError }) {
  const parts = Array.isArray(output) ? output : [output];
  const texts = parts.map((part) => (typeof part === "string" ? part : part?.result));
  const text = texts.every((one) => typeof one === "string") ? texts.join("\n") : JSON.stringify(output);
  return { content: text, is_error: isError === true || parts.some((part) => part?.success === false) };
}

function refusal({ toolCall }, reason) {
  refused.add(toolCall.toolCallId);
  return { skip: true, reason };
}

export const plugin = {
  name: "loopguard",
  manifest: { capabilities: ["hooks"] },

  setup(_, context) {
    session = context?.session?.sessionId ?? "";
    folder = context?.workspaceInfo?.rootPath ?? "";
    log = context?.logger;
  },

  hooks: {
    async beforeRun({ snapshot }) {
      endings.delete(snapshot.agentId);
      const prompt = snapshot.parentAgentId ? "" : promptOf(snapshot);
      if (!prompt) return;
      const prompt_id = snapshot.messages.at(-1).id;
      await ask(null, { hook_event_name: "chat.message", ...place(snapshot), prompt, prompt_id });
    },

    async beforeModel({ snapshot }) {
      const reason = endings.get(snapshot.agentId);
      if (reason) return { stop: true, reason };
    },

    async beforeTool(context) {
      const answer = await ask(null, { hook_event_name: "tool.execute.before", ...about(context) });
      if (answer === null && FAIL_CLOSED) {
        return refusal(context, "LoopGuard is away, and this plugin fails closed.");
      }
      // The end comes before the next request: as the result of this call, the person reads who has ended the run.
      if (answer?.stop) endings.set(context.snapshot.agentId, answer.notice || answer.message);
      if (answer?.run === false) {
        return refusal(context, (answer.stop && answer.notice) || answer.message || "The call was not run.");
      }
      if (answer?.message) return { appendContext: answer.message };
    },

    async afterTool(context) {
      if (refused.delete(context.toolCall.toolCallId)) return;
      const answer = await ask(null, {
        hook_event_name: "tool.execute.after",
        ...about(context),
        output: outputOf(context.result),
      });
      if (answer?.stop) endings.set(context.snapshot.agentId, answer.notice || answer.message);
      if (answer?.message) return { appendContext: answer.message };
    },
  },
};

export default plugin;
