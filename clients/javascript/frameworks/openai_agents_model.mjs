/** A model of the OpenAI Agents SDK that follows a script. */
export function modelOf(script, name = "search", argumentsOf = ({ json }) => json) {
  const response = () => {
    const found = script.next();
    const output = found.map((call) => ({
      type: "function_call",
      callId: call.id,
      name,
      status: "completed",
      arguments: argumentsOf(call),
    }));
    const message = {
      type: "message",
      role: "assistant",
      status: "completed",
      content: [{ type: "output_text", text: "done" }],
    };
    const usage = { requests: 1, inputTokens: 1, outputTokens: 1, totalTokens: 2 };
    return { usage, output: found.length > 0 ? output : [message], responseId: `resp_${script.requests}` };
  };
  return {
    getResponse: async () => response(),
    async *getStreamedResponse() {
      const { responseId: id, ...rest } = response();
      yield { type: "response_started" };
      yield { type: "response_done", response: { id, ...rest } };
    },
  };
}
