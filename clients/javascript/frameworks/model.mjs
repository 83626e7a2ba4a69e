const count = (total) => ({ total, noCache: total, cacheRead: 0, cacheWrite: 0, text: total, reasoning: 0 });

/** A model that follows a script, in the interface of the AI SDK, which Mastra takes as well. */
export function modelOf(script, seen = []) {
  const answer = (options) => {
    seen.push(options.prompt);
    const found = script.next();
    const content = found.map(({ id, json }) => ({
      type: "tool-call",
      toolCallId: id,
      toolName: "search",
      input: json,
    }));
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
      const parts = [{ type: "stream-start", warnings }, ...content, { type: "finish", finishReason, usage }];
      return { stream: ReadableStream.from(parts) };
    },
  };
}
