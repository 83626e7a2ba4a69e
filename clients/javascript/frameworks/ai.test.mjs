import assert from "node:assert/strict";
import { test } from "node:test";

import * as ai7 from "ai";
import * as ai6 from "ai-6";
import { loopguard } from "loopguard-client/ai";
import { z } from "zod";

import { Search, patient } from "../tests/support.mjs";
import { Script, testAdapter, testSubAgent } from "./common.mjs";
import { modelOf } from "./model.mjs";

const repeating = (times) => new Script(Array(times).fill(["x"]));

const toolsOf = (ai, tool) => ({
  search: ai.tool({ description: "Search.", inputSchema: z.object({ q: z.string() }), execute: tool.run }),
});

for (const [version, ai] of Object.entries({ 6: ai6, 7: ai7 })) {
  const settings = ({ guard, tool, name: session, script }) => ({
    model: modelOf(script),
    ...loopguard(guard, { tools: toolsOf(ai, tool), session, stopWhen: ai.stepCountIs(50) }),
  });
  testAdapter(`AI SDK ${version}, generateText`, (run) => ai.generateText({ prompt: "Find x.", ...settings(run) }));
  testAdapter(`AI SDK ${version}, streamText`, async (run) => {
    await ai.streamText({ prompt: "Find x.", ...settings(run) }).consumeStream();
  });
  testAdapter(`AI SDK ${version}, ToolLoopAgent`, async (run) => {
    await new ai.ToolLoopAgent(settings(run)).generate({ prompt: "Find x." });
  });
  testAdapter(`AI SDK ${version}, UI stream of ToolLoopAgent`, async (run) => {
    const result = await new ai.ToolLoopAgent(settings(run)).stream({ prompt: "Find x." });
    for await (const _ of result.toUIMessageStream());
  });

  testSubAgent(`AI SDK ${version}`, async ({ guard, tool, name, boss, worker }) => {
    const finder = new ai.ToolLoopAgent(settings({ guard, tool, name: `${name}/worker`, script: worker }));
    const ask = ai.tool({
      inputSchema: z.object({ q: z.string() }),
      execute: async ({ q: prompt }) => (await finder.generate({ prompt })).text,
    });
    const guarded = loopguard(guard, { tools: { ask }, session: name });
    await ai.generateText({ model: modelOf(boss, [], "ask"), prompt: "Find x.", ...guarded });
  });

  test(`AI SDK ${version}: each run of an agent is a session of its own, also at the same time`, async () => {
    const guard = patient();
    const search = new Search();
    const guarded = loopguard(guard, { tools: toolsOf(ai, search) });
    const runs = [2, 2].map((times) => ({ model: modelOf(repeating(times)), prompt: "Find x.", ...guarded }));
    await Promise.all(runs.map((run) => ai.generateText(run)));
    assert.equal(search.runs, 4);
    await guard.close(20);
  });

  test(`AI SDK ${version}: the model reads warnings with results that are no texts, and refusals as texts`, async () => {
    const guard = patient();
    const seen = [];
    const script = repeating(5);
    const search = ai.tool({
      inputSchema: z.object({ q: z.string() }),
      execute: async () => ({ hits: 0 }),
      ...(version === "7" ? { toModelOutput: ({ output }) => ({ type: "json", value: { n: output.hits } }) } : {}),
    });
    await ai.generateText({
      model: modelOf(script, seen),
      prompt: "Find x.",
      ...loopguard(guard, { tools: { search } }),
    });
    const outputs = seen
      .at(-1)
      .filter((message) => message.role === "tool")
      .map((message) => message.content[0].output);
    assert.deepEqual(
      outputs.map((output) => output.type),
      ["json", "json", "text", "text", "text"],
    );
    assert.match(outputs[2].value, version === "6" ? /.\n\n\{"hits":0\}$/s : /.\n\n\{"n":0\}$/s);
    assert.match(outputs[3].value, /'search' was called/);
    await guard.close(20);
  });

  test(`AI SDK ${version}: a tool that gives several values keeps them`, async () => {
    const guard = patient();
    const values = [];
    const search = ai.tool({
      inputSchema: z.object({ q: z.string() }),
      async *execute() {
        yield "half";
        yield "0 hits";
      },
    });
    const script = repeating(3);
    const result = ai.streamText({ model: modelOf(script), prompt: "x", ...loopguard(guard, { tools: { search } }) });
    for await (const part of result.fullStream) if (part.type === "tool-result") values.push(part.output);
    assert.deepEqual(values.slice(0, 3), ["half", "0 hits", "0 hits"]);
    assert.match(values.at(-1), /.\n\n0 hits$/s);
    await guard.close(20);
  });
}
