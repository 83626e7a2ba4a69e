// Measures what guarding adds to a call: the same runs of one call each with and without LoopGuard, in turns.
//
//     npm ci && LOOPGUARD_URL=http://127.0.0.1:8300 LOOPGUARD_KEY=lg_… node added_time.mjs [CALLS]
//
// Each way is one line: the median milliseconds without and with LoopGuard, what it adds, how much of that is processor
// time of this process, and the 99th percentile of a guarded run. A bare request to the same server shows how busy the
// machine is. No call is like another, so that none is blocked. The command ends with 1 if a call got no verdict.
import { createHash, randomUUID } from "node:crypto";

import Anthropic from "@anthropic-ai/sdk";
import { HumanMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { Agent as MastraAgent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { Agent, Runner, tool as agentsTool } from "@openai/agents";
import * as ai from "ai";
import { createAgent } from "langchain";
import { Guard } from "loopguard-client";
import { loopguard } from "loopguard-client/ai";
import { loopguardMiddleware } from "loopguard-client/langchain";
import { loopguard as mastraGuard } from "loopguard-client/mastra";
import { guardAgents } from "loopguard-client/openai-agents";
import OpenAI from "openai";
import { z } from "zod";

import { ScriptedModel } from "./langchain_model.mjs";
import { modelOf } from "./model.mjs";
import { modelOf as agentsModelOf } from "./openai_agents_model.mjs";
import { chat, messages, scripted } from "./providers.mjs";

const WARM_UP = 10;
const calls = Number(process.argv[2] ?? 200);
const guard = new Guard({ agent: "added-time", budgetSeconds: 5 });
const search = ({ q }) => createHash("sha256").update(q).digest("hex");
const inputSchema = z.object({ q: z.string() });

/** A script of one call, whose query nothing else has, and the end. */
function once() {
  const q = randomUUID();
  const steps = [[{ id: q, q, json: JSON.stringify({ q }) }]];
  return { next: () => steps.shift() ?? [] };
}

const tools = { search: ai.tool({ inputSchema, execute: search }) };
const runner = new Runner({ tracingDisabled: true });
const agentTool = agentsTool({ name: "search", description: "Search.", parameters: inputSchema, execute: search });
const about = { name: "search", description: "Search.", schema: inputSchema };
const mastraTool = createTool({ id: "search", description: "Search.", inputSchema, execute: async (given) => search(given) });
const guardedSearch = guard.tool(search, { name: "search" });
const session = (name) => ({ session: `added-time-${name}` });

async function loop(ask, said, isGuarded) {
  const conversation = [{ role: "user", content: "Find x." }];
  for (;;) {
    const response = await ask(conversation);
    const found = said(response);
    conversation.push(found.message);
    if (found.calls.length === 0) return;
    if (isGuarded) conversation.push(...(await (await guard.calls(response)).answers((_, args) => search(args))));
    else for (const one of found.calls) conversation.push({ role: "tool", content: search(one), tool_call_id: "x" });
  }
}

/** Each way to run one call, guarded or not. */
const WAYS = {
  "`guard.tool`": (isGuarded) => (isGuarded ? guardedSearch : search)({ q: randomUUID() }),
  "AI SDK 7": (isGuarded) => {
    const given = isGuarded ? loopguard(guard, { tools, ...session("ai") }) : { tools, stopWhen: ai.stepCountIs(20) };
    return ai.generateText({ model: modelOf(once()), prompt: "Find x.", ...given });
  },
  LangChain: (isGuarded) => {
    const middleware = isGuarded ? [loopguardMiddleware(guard, session("langchain"))] : [];
    const agent = createAgent({ model: new ScriptedModel(once()), tools: [langchainTool(search, about)], middleware });
    return agent.invoke({ messages: [new HumanMessage("Find x.")] });
  },
  "OpenAI Agents SDK": async (isGuarded) => {
    const end = isGuarded ? guardAgents(guard, Agent) : () => undefined;
    await runner.run(new Agent({ name: "finder", model: agentsModelOf(once()), tools: [agentTool] }), "Find x.");
    end();
  },
  Mastra: (isGuarded) => {
    const given = isGuarded ? mastraGuard(guard, session("mastra")) : {};
    const agent = { id: "f", name: "f", instructions: "x", model: modelOf(once()), tools: { search: mastraTool } };
    return new MastraAgent({ ...agent, ...given }).generate("Find x.");
  },
  "`openai`": (isGuarded) => {
    const client = new OpenAI({ apiKey: "k", baseURL: "http://model.invalid/v1", fetch: scripted(chat(once())) });
    const ask = (list) => client.chat.completions.create({ model: "m", messages: list });
    const said = ({ choices: [{ message }] }) => {
      const found = message.tool_calls ?? [];
      return { message, calls: found.map((one) => JSON.parse(one.function.arguments)) };
    };
    return loop(ask, said, isGuarded);
  },
  "`@anthropic-ai/sdk`": (isGuarded) => {
    const client = new Anthropic({ apiKey: "k", baseURL: "http://model.invalid", fetch: scripted(messages(once())) });
    const ask = (list) => client.messages.create({ model: "m", max_tokens: 9, messages: list });
    const said = ({ role, content }) => {
      const found = content.filter((block) => block.type === "tool_use");
      return { message: { role, content }, calls: found.map((block) => block.input) };
    };
    return loop(ask, said, isGuarded);
  },
};

async function timed(run) {
  const [began, used] = [performance.now(), process.cpuUsage()];
  await run();
  const { user, system } = process.cpuUsage(used);
  return { clock: performance.now() - began, processor: (user + system) / 1000 };
}

const sorted = (times) => times.toSorted((one, other) => one - other);
const median = (times, kind = "clock") => sorted(times.map((one) => one[kind]))[Math.floor(times.length / 2)];

const bare = [];
for (let at = 0; at < 50; at += 1) {
  bare.push(await timed(async () => (await fetch(`${guard.url}/livez`, { signal: AbortSignal.timeout(9_000) })).text()));
}
console.log(`bare request: ${median(bare).toFixed(2)} ms; ${calls} runs of one call each`);
console.log("| way | without | with | added | of it processor | p99 |\n| --- | ---: | ---: | ---: | ---: | ---: |");
for (const [name, way] of Object.entries(WAYS)) {
  const [without, guarded] = [[], []];
  await guard.session(`added-time-${randomUUID()}`).run(async () => {
    for (let at = 0; at < calls + WARM_UP; at += 1) {
      const times = [await timed(() => way(false)), await timed(() => way(true))];
      if (at < WARM_UP) continue;
      without.push(times[0]);
      guarded.push(times[1]);
    }
  });
  const p99 = sorted(guarded.map(({ clock }) => clock))[Math.floor(guarded.length * 0.99)];
  const added = (kind) => median(guarded, kind) - median(without, kind);
  const figures = [median(without), median(guarded), added("clock"), added("processor"), p99];
  console.log(`| ${name} | ${figures.map((one) => one.toFixed(2)).join(" | ")} |`);
}
await guard.close(10);
process.exitCode = guard.status.unguardedCalls > 0 ? 1 : 0;
