// Plain loops with the model clients of OpenAI and Anthropic, streamed and not.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

import { testAdapter } from "./common.mjs";
import { chat, messages, responses, scripted } from "./providers.mjs";

/** A loop with a model: `ask` sends the conversation and returns the response, and `said` is what it adds to it. */
async function loop({ guard, tool, name }, ask, said) {
  const session = guard.session(name);
  const conversation = [{ role: "user", content: "Find x." }];
  for (;;) {
    const response = await ask(conversation);
    conversation.push(...said(response));
    const asked = await session.calls(response);
    conversation.push(...(await asked.answers((_name, args) => tool.run(args))));
    if (asked.stopped || asked.items.length === 0) break;
  }
}

const openai = (answer) => new OpenAI({ apiKey: "k", baseURL: "http://model.invalid/v1", fetch: scripted(answer) });
const anthropic = (answer) => new Anthropic({ apiKey: "k", baseURL: "http://model.invalid", fetch: scripted(answer) });

for (const streamed of [false, true]) {
  const how = streamed ? ", streamed" : "";
  testAdapter(`openai, chat completions${how}`, (run) => {
    const { completions } = openai(chat(run.script)).chat;
    const ask = (list) => {
      const request = { model: "m", messages: list };
      return streamed ? completions.stream(request).finalChatCompletion() : completions.create(request);
    };
    return loop(run, ask, (response) => [response.choices[0].message]);
  });
  testAdapter(`openai, responses${how}`, (run) => {
    const { responses: api } = openai(responses(run.script));
    const ask = (input) => {
      const request = { model: "m", input };
      return streamed ? api.stream(request).finalResponse() : api.create(request);
    };
    return loop(run, ask, (response) => response.output);
  });
  testAdapter(`@anthropic-ai/sdk${how}`, (run) => {
    const { messages: api } = anthropic(messages(run.script));
    const ask = (list) => {
      const request = { model: "m", max_tokens: 100, messages: list };
      return streamed ? api.stream(request).finalMessage() : api.create(request);
    };
    return loop(run, ask, ({ role, content }) => [{ role, content }]);
  });
}
