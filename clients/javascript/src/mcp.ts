/** MCP: a transport of a client that guards the calls of a server's tools. */

import type { Verdict } from "./calls.js";
import { forgetOldest } from "./fallback.js";
import type { Guard } from "./guard.js";
import type { Session } from "./session.js";
import { newId, partsText } from "./wire.js";

const MAX_CALLS = 1_000;

type Id = string | number;

interface Message {
  id?: Id;
  method?: string;
  params?: Record<string, unknown>;
  result?: { content?: unknown; isError?: unknown };
  error?: unknown;
}

/** A transport of `@modelcontextprotocol/sdk`. */
export interface Transport {
  start(): Promise<void>;
  // The messages and their options have the types of the SDK.
  send(message: any, options?: any): Promise<void>;
  close(): Promise<void>;
  onmessage?: ((message: any, extra?: any) => void) | undefined;
}

/**
 * Return a transport that guards `tools/call`: `client.connect(guardTransport(guard, new StdioClientTransport(…)))`.
 *
 * A blocked call is answered with `isError` and its message, and a warning is put in front of the result. All other
 * messages pass. MCP cannot end a run: after a stop, every call is answered with its message. A connection is a
 * session, unless `session` names one or a call is made inside of `session.run`.
 */
export function guardTransport<T extends Transport>(guard: Guard, transport: T, options: { session?: string } = {}): T {
  const own = guard.session(options.session || newId("mcp-"));
  own.program = "mcp";
  const running = new Map<Id, { session: Session; verdict: Verdict }>();
  const checking = new Set<Id>();
  const cancelled = new Set<Id>();
  let receive: Transport["onmessage"];

  async function send(message: Message, sendOptions?: object): Promise<void> {
    const { id, method, params } = message;
    if (method === "initialize") own.agent ||= String((params?.["clientInfo"] as { name?: unknown })?.name ?? "");
    if (method === "notifications/cancelled" && checking.has(params?.["requestId"] as Id)) {
      cancelled.add(params?.["requestId"] as Id);
      return;
    }
    if (method !== "tools/call" || id === undefined || typeof params?.["name"] !== "string") {
      return transport.send(message, sendOptions);
    }
    const session = (options.session ? undefined : guard.surroundingSession()) ?? own;
    checking.add(id);
    const verdict = await session.check(params["name"], params["arguments"] ?? {}, { callId: newId("mcp_") });
    checking.delete(id);
    if (cancelled.delete(id)) return session.result(verdict, "Cancelled before it ran.", { isError: true });
    if (verdict.mayRun) {
      running.set(id, { session, verdict });
      forgetOldest(running, MAX_CALLS);
      return transport.send(message, sendOptions);
    }
    const content = [{ type: "text", text: verdict.message }];
    // `resultType` since the version 2026-07-28; older ones ignore it.
    const result = { content, isError: !verdict.isAnswer, resultType: "complete" };
    receive?.({ jsonrpc: "2.0", id, result });
  }

  function arrived(message: Message, extra?: unknown): void {
    const call = message.id === undefined || message.method ? undefined : running.get(message.id);
    if (call && message.id !== undefined) {
      running.delete(message.id);
      report(call.session, call.verdict, message);
    }
    receive?.(message, extra);
  }

  return new Proxy(transport, {
    get(target, name) {
      if (name === "send") return send;
      if (name === "onmessage") return receive;
      const value: unknown = Reflect.get(target, name);
      return typeof value === "function" ? value.bind(target) : value;
    },
    set(target, name, value) {
      if (name !== "onmessage") return Reflect.set(target, name, value);
      receive = value as Transport["onmessage"];
      target.onmessage = arrived;
      return true;
    },
  });
}

function report(session: Session, verdict: Verdict, message: Message): void {
  const { result } = message;
  if (!result) return session.result(verdict, message.error, { isError: true });
  const { content } = result;
  session.result(verdict, partsText(content), { isError: result.isError === true });
  if (verdict.warning && Array.isArray(content)) {
    result.content = [{ type: "text", text: verdict.warning }, ...(content as unknown[])];
  }
}
