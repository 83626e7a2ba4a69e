// Answers of model servers, in the forms of their providers.

const event = (data, name = "") =>
  `${name && `event: ${name}\n`}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;

/** A `fetch` that answers as the provider does. */
export const scripted =
  (answer) =>
  async (_url, { body }) => {
    const { stream } = JSON.parse(body);
    const said = answer(stream === true);
    const headers = { "Content-Type": stream ? "text/event-stream" : "application/json" };
    return new Response(stream ? said.join("") : JSON.stringify(said), { headers });
  };

export const chat = (script) => (isStream) => {
  const found = script.next();
  const calls = found.map(({ id, json }, index) => ({
    index,
    id,
    type: "function",
    function: { name: "search", arguments: json },
  }));
  const message = {
    role: "assistant",
    content: calls.length > 0 ? null : "done",
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
  };
  const choice = { index: 0, finish_reason: calls.length > 0 ? "tool_calls" : "stop" };
  const completion = { id: "c", object: "chat.completion", created: 1, model: "m", choices: [{ ...choice, message }] };
  if (!isStream) return completion;
  const chunk = { ...completion, object: "chat.completion.chunk", choices: [{ ...choice, delta: message }] };
  return [event(chunk), event("[DONE]")];
};

export const responses = (script) => (isStream) => {
  const found = script.next();
  const output =
    found.length > 0
      ? found.map(({ id, json }) => ({
          type: "function_call",
          id: `fc_${id}`,
          call_id: id,
          name: "search",
          arguments: json,
          status: "completed",
        }))
      : [
          {
            type: "message",
            id: "m",
            role: "assistant",
            status: "completed",
            content: [{ type: "output_text", text: "done", annotations: [] }],
          },
        ];
  const response = {
    id: "r",
    object: "response",
    created_at: 1,
    model: "m",
    status: "completed",
    output,
    tools: [],
    parallel_tool_calls: true,
  };
  if (!isStream) return response;
  return [
    event({ type: "response.created", sequence_number: 0, response: { ...response, output: [] } }, "response.created"),
    event({ type: "response.completed", sequence_number: 1, response }, "response.completed"),
  ];
};

export const messages =
  (script, name = "search", inputOf = ({ q }) => ({ q })) =>
  (isStream) => {
    const found = script.next();
    const blocks =
      found.length > 0
        ? found.map((call) => ({ type: "tool_use", id: call.id, name, input: inputOf(call) }))
        : [{ type: "text", text: "done" }];
    const usage = { input_tokens: 1, output_tokens: 1 };
    const message = {
      id: "m",
      type: "message",
      role: "assistant",
      model: "m",
      content: blocks,
      usage,
      stop_sequence: null,
      stop_reason: found.length > 0 ? "tool_use" : "end_turn",
    };
    if (!isStream) return message;
    const events = [{ type: "message_start", message: { ...message, content: [], stop_reason: null } }];
    for (const [index, block] of blocks.entries()) {
      const isTool = block.type === "tool_use";
      events.push({
        type: "content_block_start",
        index,
        content_block: isTool ? { ...block, input: {} } : { ...block, text: "" },
      });
      const delta = isTool
        ? { type: "input_json_delta", partial_json: JSON.stringify(block.input) }
        : { type: "text_delta", text: block.text };
      events.push({ type: "content_block_delta", index, delta }, { type: "content_block_stop", index });
    }
    events.push(
      { type: "message_delta", delta: { stop_reason: message.stop_reason, stop_sequence: null }, usage },
      { type: "message_stop" },
    );
    return events.map((one) => event(one, one.type));
  };
