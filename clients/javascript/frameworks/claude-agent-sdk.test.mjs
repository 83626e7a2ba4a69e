import { createServer } from "node:http";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { createSdkMcpServer, query, tool as toolOf } from "@anthropic-ai/claude-agent-sdk";
import { loopguardHooks } from "loopguard-client/claude-agent-sdk";
import { z } from "zod";

import { testAdapter } from "./common.mjs";
import { messages } from "./providers.mjs";

testAdapter("Claude Agent SDK", async ({ guard, tool, name, script }) => {
  const answer = messages(script, "mcp__searching__search");
  const model = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const asked = request.url.includes("/messages") && !request.url.includes("count_tokens") ? JSON.parse(body) : {};
    // Requests without tools, for a title or a summary, are not of the agent.
    if (!asked.tools?.length) {
      response.writeHead(404, { "Content-Type": "application/json" }).end("{}");
      return;
    }
    response.writeHead(200, { "Content-Type": "text/event-stream" }).end(answer(true).join(""));
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
        allowedTools: ["mcp__searching__search"],
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
      },
    });
    for await (const _ of run);
  } finally {
    model.closeAllConnections();
    model.close();
    rmSync(home, { recursive: true, force: true });
  }
});
