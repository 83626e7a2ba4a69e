import { createServer } from "node:http";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { createSdkMcpServer, query, tool as toolOf } from "@anthropic-ai/claude-agent-sdk";
import { loopguardHooks } from "loopguard-client/claude-agent-sdk";
import { z } from "zod";

import { testAdapter, testSubAgent } from "./common.mjs";
import { messages } from "./providers.mjs";

const SEARCH = "mcp__searching__search";

/** Run an agent; `answer` returns what the model answers to a request. */
async function play({ guard, tool, name }, answer, more = {}) {
  const model = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const asked = request.url.includes("/messages") && !request.url.includes("count_tokens") ? JSON.parse(body) : {};
    // Requests without tools, for a title or a summary, are not of the agent.
    if (!asked.tools?.length) {
      response.writeHead(404, { "Content-Type": "application/json" }).end("{}");
      return;
    }
    response.writeHead(200, { "Content-Type": "text/event-stream" }).end(answer(asked).join(""));
  });
  await new Promise((resolve) => model.listen(0, "127.0.0.1", resolve));
  const home = mkdtempSync(join(tmpdir(), "loopguard-sdk-"));
  const search = toolOf("search", "Search.", { q: z.string() }, async (args) => ({
    content: [{ type: "text", text: tool.run(args) }],
  }));
  try {
    const run = query({
      prompt: "Find x.",
      options: {
        hooks: loopguardHooks(guard, { session: name }),
        mcpServers: { searching: createSdkMcpServer({ name: "searching", tools: [search] }) },
        allowedTools: [SEARCH],
        cwd: home,
        maxTurns: 60,
        settingSources: [],
        env: {
          PATH: process.env.PATH,
          HOME: home,
          ANTHROPIC_API_KEY: "k",
          CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
          ENABLE_TOOL_SEARCH: "false",
          ANTHROPIC_BASE_URL: `http://127.0.0.1:${model.address().port}`,
        },
        ...more,
      },
    });
    for await (const _ of run);
  } finally {
    model.closeAllConnections();
    model.close();
    rmSync(home, { recursive: true, force: true });
  }
}

for (const includePartialMessages of [false, true]) {
  testAdapter(`Claude Agent SDK${includePartialMessages ? ", streamed" : ""}`, (run) => {
    const answer = messages(run.script, SEARCH);
    return play(run, () => answer(true), { includePartialMessages });
  });
}

testSubAgent("Claude Agent SDK", async (run) => {
  const finding = messages(run.worker, SEARCH);
  let delegates = "";
  const asking = messages(run.boss, "Task", ({ q }) => ({ description: q, prompt: q, subagent_type: "finder" }));
  const sessions = new Set();
  const check = run.guard.session.bind(run.guard);
  run.guard.session = (name, about) => {
    if (about?.parent) sessions.add(name);
    return check(name, about);
  };
  const answer = ({ system, tools }) => {
    delegates ||= tools.find((one) => one.name === "Task" || one.name === "Agent")?.name ?? "";
    if (JSON.stringify(system).includes("You are the finder.")) return finding(true);
    return asking(true).map((line) => line.replace('"name":"Task"', `"name":"${delegates}"`));
  };
  const finder = { description: "Finds.", prompt: "You are the finder.", tools: [SEARCH] };
  await play(run, answer, { agents: { finder }, allowedTools: [SEARCH, "Task", "Agent"] });
  const [inner] = sessions;
  return inner;
});
