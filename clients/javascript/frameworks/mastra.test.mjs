import assert from "node:assert/strict";
import { test } from "node:test";

import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { loopguard } from "loopguard-client/mastra";
import { z } from "zod";

import { Search, patient } from "../tests/support.mjs";
import { IDENTICAL, Script, testAdapter, testSubAgent } from "./common.mjs";
import { modelOf } from "./model.mjs";

const agentOf = ({ guard, tool, name: session, script }) =>
  new Agent({
    id: "finder",
    name: "finder",
    instructions: "Find it.",
    model: modelOf(script),
    tools: {
      search: createTool({
        id: "search",
        description: "Search.",
        inputSchema: z.object({ q: z.string() }),
        execute: async (input) => tool.run(input),
      }),
    },
    ...loopguard(guard, session ? { session } : {}),
  });

testAdapter("Mastra", (run) => agentOf(run).generate("Find x.", { maxSteps: 60 }));
testAdapter("Mastra, streamed", async (run) => {
  const stream = await agentOf(run).stream("Find x.", { maxSteps: 60 });
  for await (const _ of stream.fullStream);
});

testSubAgent("Mastra", async ({ guard, tool, name, boss, worker }) => {
  const finder = agentOf({ guard, tool, name: `${name}/worker`, script: worker });
  const caller = new Agent({
    id: "caller",
    name: "caller",
    instructions: "Let it be found.",
    model: modelOf(boss, [], "agent-finder", ({ q }) => JSON.stringify({ prompt: q, maxSteps: 60 })),
    agents: { finder },
    ...loopguard(guard, { session: name }),
  });
  await caller.generate("Find x.", { maxSteps: 60 });
});

test("Mastra: the reason of a stop is in the tripwire, and each run is a session of its own", async () => {
  const guard = patient();
  const tool = new Search();
  for (let number = 0; number < 2; number += 1) {
    const result = await agentOf({ guard, tool, script: new Script(IDENTICAL) }).generate("Find x.", { maxSteps: 60 });
    assert.match(result.tripwire.reason, /search/);
  }
  assert.equal(tool.runs, 6);
  await guard.close(20);
});
