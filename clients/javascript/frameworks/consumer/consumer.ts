// What an application in strict TypeScript writes; it is compiled, not run.
import { query } from "@anthropic-ai/claude-agent-sdk";
import Anthropic from "@anthropic-ai/sdk";
import { Agent as MastraAgent } from "@mastra/core/agent";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { Agent } from "@openai/agents";
import { type LanguageModel, ToolLoopAgent, generateText, stepCountIs, streamText, tool } from "ai";
import {
  ToolLoopAgent as ToolLoopAgent6,
  generateText as generateText6,
  stepCountIs as stepCountIs6,
  streamText as streamText6,
  tool as tool6,
} from "ai-6";
import type { LanguageModel as LanguageModel6 } from "ai-6";
import { createAgent, tool as langchainTool } from "langchain";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { CallBlocked, type Decision, Guard, RunStopped, type Status, type Verdict } from "loopguard-client";
import { loopguard } from "loopguard-client/ai";
import { loopguardHooks } from "loopguard-client/claude-agent-sdk";
import { guardTools, loopguardMiddleware } from "loopguard-client/langchain";
import { loopguard as mastraGuard } from "loopguard-client/mastra";
import { guardTransport } from "loopguard-client/mcp";
import { guardAgents } from "loopguard-client/openai-agents";
import OpenAI from "openai";
import { z } from "zod";

const guard = new Guard({
  agent: "support",
  failClosed: ["delete_*"],
  onStatus: (status: Status) => void status.degraded,
});
const search = guard.tool(async ({ q }: { q: string }) => [q], { name: "search" });
export const found: Promise<string[]> = search({ q: "x" });

export async function core(): Promise<number> {
  const session = guard.session("chat-42", { parent: "boss" });
  const verdict: Verdict = await session.check("search", { q: "x" }, { callId: "c", signal: AbortSignal.timeout(1) });
  const decision: Decision = verdict.decision;
  session.result(verdict, { decision }, { isError: false });
  try {
    return await session.call("count", {}, () => 1);
  } catch (error) {
    if (error instanceof CallBlocked || error instanceof RunStopped) return error.verdict.retryAfterSeconds;
    throw error;
  }
}

export async function ai7(model: LanguageModel): Promise<string> {
  const tools = {
    search: tool({ inputSchema: z.object({ q: z.string() }), execute: async ({ q }) => ({ hits: q.length }) }),
  };
  const guarded = loopguard(guard, { tools, session: "chat-42", stopWhen: stepCountIs(20) });
  const { text, toolResults } = await generateText({ model, prompt: "x", ...guarded });
  for (const one of toolResults) if (!one.dynamic) one.output.hits.toFixed();
  streamText({ model, prompt: "x", ...guarded }).toUIMessageStreamResponse();
  await new ToolLoopAgent({ model, ...guarded }).generate({ prompt: "x" });
  return text;
}

export async function ai6(model: LanguageModel6): Promise<string> {
  const tools = {
    search: tool6({ inputSchema: z.object({ q: z.string() }), execute: async ({ q }) => ({ hits: q.length }) }),
  };
  const guarded = loopguard(guard, {
    tools,
    session: ({ messages }) => `${messages.length}`,
    stopWhen: [stepCountIs6(20)],
  });
  streamText6({ model, prompt: "x", ...guarded }).toUIMessageStreamResponse();
  await new ToolLoopAgent6({ model, ...guarded }).generate({ prompt: "x" });
  return (await generateText6({ model, prompt: "x", ...guarded })).text;
}

export async function langchain(): Promise<void> {
  const tools = [langchainTool(({ q }) => q, { name: "search", schema: z.object({ q: z.string() }) })];
  await createAgent({ model: "openai:gpt-5", tools, middleware: [loopguardMiddleware(guard)] }).invoke({
    messages: "x",
  });
  new ToolNode(guardTools(guard, tools), { handleToolErrors: false });
}

export async function others(): Promise<void> {
  guardAgents(guard, Agent)();
  const agent = new MastraAgent({
    id: "a",
    name: "a",
    instructions: "x",
    model: "openai/gpt-5",
    ...mastraGuard(guard),
  });
  await agent.generate("x");
  for await (const _ of query({ prompt: "x", options: { hooks: loopguardHooks(guard) } }));
  await new Client({ name: "a", version: "1" }).connect(
    guardTransport(guard, new StdioClientTransport({ command: "x" })),
  );
}

export async function loops(openai: OpenAI, anthropic: Anthropic): Promise<void> {
  const run = (name: string, args: { q: string }): string => name + args.q;
  const messages: OpenAI.ChatCompletionMessageParam[] = [];
  const completion = await openai.chat.completions.create({ model: "m", messages });
  messages.push(...(await (await guard.calls(completion)).answers(run)));
  const input: OpenAI.Responses.ResponseInputItem[] = [];
  const response = await openai.responses.create({ model: "m", input });
  input.push(...(await (await guard.calls(response)).answers(run)));
  const list: Anthropic.MessageParam[] = [];
  const message = await anthropic.messages.create({ model: "m", max_tokens: 1, messages: list });
  list.push(...(await (await guard.calls(message)).answers(run)));
}
