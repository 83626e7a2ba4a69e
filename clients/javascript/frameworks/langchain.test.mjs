import assert from "node:assert/strict";
import { test } from "node:test";

import { HumanMessage } from "@langchain/core/messages";
import { tool as toolOf } from "@langchain/core/tools";
import { END, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { createAgent } from "langchain";
import { RunStopped } from "loopguard-client";
import { guardTools, loopguardMiddleware } from "loopguard-client/langchain";
import { z } from "zod";

import { Search, newName, patient } from "../tests/support.mjs";
import { IDENTICAL, Script, testAdapter, testSubAgent } from "./common.mjs";
import { ScriptedModel } from "./langchain_model.mjs";

const searchTool = (tool) =>
  toolOf(tool.run, { name: "search", description: "Search.", schema: z.object({ q: z.string() }) });
const asked = { messages: [new HumanMessage("Find x.")] };
const configuration = (name) => ({ configurable: { thread_id: name }, recursionLimit: 200 });

const agentOf = ({ guard, tool, script }) =>
  createAgent({
    model: new ScriptedModel(script),
    tools: [searchTool(tool)],
    middleware: [loopguardMiddleware(guard)],
  });

testAdapter("LangChain", async (run) => {
  await agentOf(run).invoke(asked, configuration(run.name));
});
testAdapter("LangChain, streamed", async (run) => {
  const stream = await agentOf(run).stream(asked, { ...configuration(run.name), streamMode: ["updates", "messages"] });
  for await (const _ of stream);
});

testSubAgent("LangChain", async ({ guard, tool, name, boss, worker }) => {
  const finder = agentOf({ guard, tool, script: worker });
  const ask = toolOf(
    async ({ q }) => (await finder.invoke({ messages: q }, configuration(`${name}/worker`))).messages.at(-1).text,
    { name: "ask", description: "Ask.", schema: z.object({ q: z.string() }) },
  );
  const model = new ScriptedModel(boss, "ask");
  await createAgent({ model, tools: [ask], middleware: [loopguardMiddleware(guard)] }).invoke(
    asked,
    configuration(name),
  );
});

/** A graph of LangGraph alone. */
const graphOf = ({ guard, tool, script }) => {
  const model = new ScriptedModel(script);
  const tools = new ToolNode(guardTools(guard, [searchTool(tool)]), { handleToolErrors: false });
  return new StateGraph(MessagesAnnotation)
    .addNode("model", async ({ messages }) => ({ messages: [await model.invoke(messages)] }))
    .addNode("tools", tools)
    .addEdge(START, "model")
    .addConditionalEdges("model", toolsCondition, ["tools", END])
    .addEdge("tools", "model")
    .compile();
};
testAdapter("LangGraph's ToolNode", async (run) => {
  await graphOf(run)
    .invoke(asked, configuration(run.name))
    .catch((error) => assert.ok(error instanceof RunStopped, error));
});

test("LangChain: the last message of a stopped run is the reason, and calls have their answers", async () => {
  const run = { guard: patient(), tool: new Search(), script: new Script(IDENTICAL) };
  const { messages } = await agentOf(run).invoke(asked, { recursionLimit: 200 });
  assert.equal(messages.at(-1).getType(), "ai");
  assert.match(messages.at(-1).text, /search/);
  const answers = messages.filter((message) => message.getType() === "tool");
  assert.equal(answers.length, 8);
  assert.match(answers[2].text, /.\n\n0 hits$/s);
  assert.deepEqual(
    answers.map((answer) => answer.status ?? "success"),
    [...Array(3).fill("success"), ...Array(5).fill("error")],
  );
  assert.ok(await run.guard.close(20));
});

test("LangChain: runs without a thread are sessions of their own", async () => {
  const guard = patient();
  const tool = new Search();
  const middleware = [loopguardMiddleware(guard)];
  for (let number = 0; number < 3; number += 1) {
    const model = new ScriptedModel(new Script([["x"], ["x"]]));
    await createAgent({ model, tools: [searchTool(tool)], middleware }).invoke({ messages: "Find x." });
  }
  assert.equal(tool.runs, 6);
  await guard.close(20);
});
