// An MCP server on stdio with one tool.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const server = new McpServer({ name: "searching", version: "1" });
server.registerTool("search", { description: "Search.", inputSchema: { q: z.string() } }, ({ q }) => ({
  content: [{ type: "text", text: q === "x" ? "0 hits" : `found ${q}` }],
}));
await server.connect(new StdioServerTransport());
