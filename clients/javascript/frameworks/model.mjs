const count = (total) => ({ total, noCache: total, cacheRead: 0, cacheWrite: 0, text: total, reasoning: 0 });

/** A model that follows a script, in the interface of the AI SDK, which Mastra takes as well. */
export function modelOf(script, seen = [], toolName = "search", inputOf = ({ json }) => json) {
  const answer = (options) => {
    seen.push(options.prompt);
    const found = script.next();
    const calls = found.map((call) => ({ type: "tool-call", toolCallId: call.id, toolName, input: inputOf(call) }));
    const content = calls.length > 0 ? calls : [{ type: "text", text: "done" }];
    const finishReason = { unified: found.length > 0 ? "tool-calls" : "stop", raw: undefined };
    return { content, finishReason, usage: { inputTokens: count(1), outputTokens: count(1) }, warnings: [] };
  };
  return {
    specificationVersion: "v3",
    provider: "scripted",
    modelId: "scripted",
    supportedUrls: {},
    doGenerate: async (options) => answer(options),
    doStream: async (options) => {
      const { content, finishReason, usage, warnings } = answer(options);
      const texts = [{ type: "text-start" }, { type: "text-delta", delta: "done" }, { type: "text-end" }];
      const said = finishReason.unified === "stop" ? texts.map((part) => ({ id: "t", ...part })) : content;
      const parts = [{ type: "stream-start", warnings }, ...said, { type: "finish", finishReason, usage }];
      return { stream: ReadableStream.from(parts) };
    },
  };
}
