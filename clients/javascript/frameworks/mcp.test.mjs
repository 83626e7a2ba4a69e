import assert from "node:assert/strict";
import { test } from "node:test";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { InMemoryTransport } from "@modelcontextprotocol/sdk/inMemory.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { guardTransport } from "loopguard-client/mcp";
import { z } from "zod";

import { Search, brokenServers, calls, newName, patient } from "../tests/support.mjs";

async function connected(t, guard, tool, options) {
  const server = new McpServer({ name: "searching", version: "1" });
  server.registerTool("search", { inputSchema: { q: z.string() } }, async (args) => ({
    content: [{ type: "text", text: tool.run(args) }],
  }));
  const [near, far] = InMemoryTransport.createLinkedPair();
  await server.connect(far);
  const client = new Client({ name: "asking", version: "1" });
  await client.connect(guardTransport(guard, near, options));
  t.after(() => client.close());
  return (q, options) => client.callTool({ name: "search", arguments: { q } }, undefined, options);
}

const text = (result) => result.content.map((part) => part.text).join("\n\n");

test("MCP: of 40 identical calls three run, and the others are answered", async (t) => {
  const guard = patient({ agent: "" });
  const tool = new Search();
  const name = newName();
  const search = await connected(t, guard, tool, { session: name });
  const results = [];
  for (let number = 0; number < 40; number += 1) results.push(await search("x"));
  assert.equal(tool.runs, 3);
  assert.deepEqual(
    results.map((result) => result.isError === true),
    [...Array(3).fill(false), ...Array(37).fill(true)],
  );
  assert.match(text(results[2]), /.\n\n0 hits$/s);
  assert.match(text(results[3]), /'search' was called/);
  assert.match(text(results[6]), /will get all further calls refused/);
  assert.match(text(await search("another")), /further call is blocked/);
  assert.ok(await guard.close(20));
  const [call] = await calls(name);
  assert.deepEqual([call.agent, call.result.content], ["asking", "0 hits"]);
});

test("MCP: of six identical calls at the same time three run, and different ones all", async (t) => {
  const guard = patient();
  const tool = new Search();
  const search = await connected(t, guard, tool);
  await Promise.all(Array.from({ length: 6 }, () => search("x")));
  assert.equal(tool.runs, 3);
  for (let number = 0; number < 12; number += 1) assert.equal(text(await search(`q${number}`)), `found q${number}`);
  await guard.close(20);
});

test("MCP: without a verdict, the client counts", async (t) => {
  for (const [trouble, options] of Object.entries(await brokenServers(t))) {
    const guard = patient(options);
    const tool = new Search();
    const search = await connected(t, guard, tool);
    for (let number = 0; number < 12; number += 1) await search("x");
    for (let number = 0; number < 12; number += 1) await search(`q${number}`);
    assert.deepEqual([trouble, tool.runs, guard.degraded], [trouble, 15, true]);
    await guard.close(0);
  }
});

test("MCP: a call that is cancelled while it is checked does not run", async (t) => {
  const { hanging } = await brokenServers(t);
  const guard = patient({ ...hanging, budgetSeconds: 1 });
  const tool = new Search();
  const search = await connected(t, guard, tool);
  await assert.rejects(search("x", { signal: AbortSignal.timeout(50) }));
  while (guard.status.unguardedCalls === 0) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(tool.runs, 0);
  await search("y");
  assert.equal(tool.runs, 1);
  await guard.close(0);
});

test("MCP: a server on stdio works behind the guard", async () => {
  const guard = patient();
  const client = new Client({ name: "asking", version: "1" });
  const args = [new URL("mcp_server.mjs", import.meta.url).pathname];
  await client.connect(guardTransport(guard, new StdioClientTransport({ command: process.execPath, args })));
  try {
    assert.deepEqual(
      (await client.listTools()).tools.map((tool) => tool.name),
      ["search"],
    );
    const results = [];
    for (let number = 0; number < 5; number += 1)
      results.push(await client.callTool({ name: "search", arguments: { q: "x" } }));
    assert.deepEqual(
      results.map((result) => result.isError === true),
      [false, false, false, true, true],
    );
  } finally {
    await client.close();
    await guard.close(20);
  }
});
