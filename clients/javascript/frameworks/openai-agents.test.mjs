import assert from "node:assert/strict";
import { test } from "node:test";

import {
  Agent,
  MCPServerStdio,
  Runner,
  ToolInputGuardrailTripwireTriggered,
  handoff,
  tool as toolOf,
} from "@openai/agents";
import { guardAgents } from "loopguard-client/openai-agents";
import { z } from "zod";

import { Search, calls, newName, patient, session as stored } from "../tests/support.mjs";
import { IDENTICAL, Script, testAdapter } from "./common.mjs";
import { modelOf } from "./openai_agents_model.mjs";

const runner = new Runner({ tracingDisabled: true });
const searchTool = (tool) =>
  toolOf({ name: "search", description: "Search.", parameters: z.object({ q: z.string() }), execute: tool.run });

async function play(agent, guard, name, stream = false) {
  const end = guardAgents(guard, Agent);
  try {
    await guard.session(name).run(async () => {
      const result = await runner.run(agent, "Find x.", { stream, maxTurns: 60 });
      if (stream) await result.completed;
    });
  } catch (error) {
    const { error: reason } = error; // of a ToolCallError
    assert.ok(reason instanceof ToolInputGuardrailTripwireTriggered, String(error?.stack));
    assert.equal(reason.result.output.outputInfo.decision, "stop");
  } finally {
    end();
  }
}

for (const streamed of [false, true]) {
  testAdapter(`OpenAI Agents${streamed ? ", streamed" : ""}`, ({ guard, tool, name, script }) =>
    play(new Agent({ name: "finder", model: modelOf(script), tools: [searchTool(tool)] }), guard, name, streamed),
  );
}

test("OpenAI Agents: tools behind a hand-off and of an agent that is a tool are guarded", async () => {
  for (const way of ["handoff", "tool"]) {
    const guard = patient({ agent: "" });
    const tool = new Search();
    const name = newName();
    const worker = new Agent({ name: "worker", model: modelOf(new Script(IDENTICAL)), tools: [searchTool(tool)] });
    const first = handoff(worker);
    const once = new Script([["x"]]);
    const boss =
      way === "handoff"
        ? new Agent({ name: "boss", model: modelOf(once, first.toolName, () => "{}"), handoffs: [first] })
        : new Agent({
            name: "boss",
            model: modelOf(once, "ask_worker", () => '{"input":"x"}'),
            tools: [worker.asTool({ toolName: "ask_worker", toolDescription: "Asks.", runOptions: { maxTurns: 60 } })],
          });
    await play(boss, guard, name);
    assert.deepEqual([way, tool.runs], [way, 3]);
    assert.ok(await guard.close(20));
    const inner = way === "handoff" ? name : `${name}/ask_worker`;
    assert.equal((await calls(inner)).filter((call) => call.tool === "search").length, 8);
    assert.equal((await stored(inner)).parent_session || "", way === "handoff" ? "" : name);
  }
});

test("OpenAI Agents: each run without a session is one, and what ends the guard ends it", async () => {
  const guard = patient();
  const tool = new Search();
  const end = guardAgents(guard, Agent);
  for (let run = 0; run < 3; run += 1) {
    const agent = new Agent({ name: "finder", model: modelOf(new Script([["x"], ["x"]])), tools: [searchTool(tool)] });
    await runner.run(agent, "Find x.");
  }
  assert.equal(tool.runs, 6);
  end();
  const agent = new Agent({
    name: "finder",
    model: modelOf(new Script(IDENTICAL.slice(0, 6))),
    tools: [searchTool(tool)],
  });
  await runner.run(agent, "Find x.", { maxTurns: 60 });
  assert.equal(tool.runs, 12);
  await guard.close(20);
});

test("OpenAI Agents: tools of MCP servers are guarded", async () => {
  const guard = patient();
  const server = new MCPServerStdio({
    command: process.execPath,
    args: [new URL("mcp_server.mjs", import.meta.url).pathname],
  });
  await server.connect();
  try {
    const script = new Script(IDENTICAL);
    const name = newName();
    await play(new Agent({ name: "finder", model: modelOf(script), mcpServers: [server] }), guard, name);
    assert.equal(script.requests, 8);
    assert.ok(await guard.close(20));
    assert.equal((await calls(name)).filter((call) => ["allow", "warn"].includes(call.decision)).length, 3);
  } finally {
    await server.close();
  }
});
