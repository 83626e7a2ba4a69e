/** LangChain agents: `loopguardMiddleware` for `createAgent`, `guardTools` for LangGraph's `ToolNode`. */

import type { Call, Verdict } from "./calls.js";
import { forgetOldest } from "./fallback.js";
import type { Guard } from "./guard.js";
import type { Session } from "./session.js";
import { type SessionChoice, sessionOf } from "./sessions.js";
import { plain } from "./wire.js";

const MAX_VERDICTS = 1_000;

interface ToolCall {
  id?: string;
  name: string;
  args: unknown;
}

interface Message {
  tool_calls?: ToolCall[];
}

interface ToolMessage {
  content: unknown;
  status?: string;
  tool_call_id: string;
}

/** What is known of a run: its state and its configuration. */
export interface RunContext {
  state: { messages: Message[] };
  threadId: string;
}

interface Runtime {
  configurable?: { thread_id?: string } | undefined;
  config?: { configurable?: { thread_id?: string } | undefined; signal?: AbortSignal } | undefined;
  signal?: AbortSignal | undefined;
}

interface Request {
  toolCall: ToolCall;
  state: { messages: Message[] };
  runtime: Runtime;
}

/**
 * Return the middleware that guards every tool call of an agent, with one request per model response:
 * `createAgent({ model, tools, middleware: [loopguardMiddleware(guard)] })`.
 *
 * A blocked call is answered with its message; the other calls of the response run. `stop` ends the run with the
 * message as the last one. The session is the `thread_id` of the configuration, else a new one for each run.
 */
export function loopguardMiddleware(guard: Guard, choice: SessionChoice<RunContext> = {}) {
  const verdicts = new Map<string, Verdict>();

  function session(state: RunContext["state"], runtime: Runtime): Session {
    const threadId = runtime.configurable?.thread_id ?? runtime.config?.configurable?.thread_id ?? "";
    const chosen = { ...choice, session: choice.session ?? threadId };
    return sessionOf(guard, chosen, { state, threadId }, state.messages[0]);
  }

  return {
    // What `createMiddleware` of LangChain adds; calling that would need its package.
    [Symbol.for("AgentMiddleware") as unknown as "~middleware"]: true,
    name: "LoopGuard",
    afterModel: {
      canJumpTo: ["model", "end"] as ("model" | "end")[],
      hook: async (state: any, runtime: any): Promise<any> => {
        const calls = (state.messages as Message[]).at(-1)?.tool_calls ?? [];
        if (calls.length === 0) return undefined;
        const asked = session(state, runtime);
        const given = await asked.checkCalls(calls.map(asCall), { signal: runtime.signal });
        const stop = given.find((verdict) => verdict.decision === "stop");
        const messages = calls.flatMap((call, index) => {
          const verdict = given[index] as Verdict;
          if (!verdict.mayRun) return [answer(call, verdict.message, verdict.isAnswer)];
          if (!stop) {
            verdicts.set(`${asked.name}\n${call.id}`, verdict);
            return [];
          }
          asked.result(verdict, "Not run: the run was stopped.", { isError: true });
          return [answer(call, "Not run: the run was stopped.", false)];
        });
        forgetOldest(verdicts, MAX_VERDICTS);
        if (stop) return { messages: [...messages, { role: "assistant", content: stop.message }], jumpTo: "end" };
        // Where no call is left to run, LangChain would end the run.
        if (messages.length === calls.length) return { messages, jumpTo: "model" };
        return messages.length > 0 ? { messages } : undefined;
      },
    },
    wrapToolCall: async (request: any, handler: any): Promise<any> => {
      const { toolCall, state, runtime } = request as Request;
      const asked = session(state, runtime);
      const key = `${asked.name}\n${toolCall.id}`;
      const verdict = verdicts.get(key);
      verdicts.delete(key);
      if (!verdict) return handler(request); // a call that this process has not asked about
      return reported(asked, verdict, () => handler(request));
    },
  };
}

interface AnyTool {
  name: string;
  invoke: (input: any, config?: any) => Promise<any>;
}

/**
 * Return guarded tools of a `ToolNode`: `new ToolNode(guardTools(guard, tools), { handleToolErrors: false })`.
 * A blocked call is answered with its message. `stop` throws `RunStopped` out of the graph, unless the node handles
 * errors of tools.
 */
export function guardTools<T extends AnyTool>(
  guard: Guard,
  tools: readonly T[],
  choice: SessionChoice<ToolCall> = {},
): T[] {
  return tools.map((tool) => {
    const invoke: AnyTool["invoke"] = async (input, config) => {
      const call = input as ToolCall & { type?: string };
      const isCall = call.type === "tool_call";
      const threadId = (config as Runtime | undefined)?.configurable?.thread_id;
      const chosen = { ...choice, session: choice.session ?? threadId ?? "" };
      const session = sessionOf(guard, chosen, call, undefined);
      const { signal } = (config ?? {}) as Runtime;
      const verdict = await session.check(tool.name, isCall ? call.args : input, { callId: call.id, signal });
      if (verdict.decision === "stop") verdict.throwIfRefused();
      if (!verdict.mayRun) return verdict.message;
      return reported(session, verdict, () => tool.invoke(input, config));
    };
    return Object.create(tool, { invoke: { value: invoke } }) as T;
  });
}

/** Run a call, report its result, and put the warning in front of it. */
async function reported(session: Session, verdict: Verdict, run: () => Promise<unknown>): Promise<unknown> {
  let result: unknown;
  try {
    result = await run();
  } catch (error) {
    session.result(verdict, error, { isError: true });
    throw error;
  }
  if (!isToolMessage(result)) {
    session.result(verdict, typeof result === "string" ? result : plain(result));
    return verdict.withWarning(result);
  }
  session.result(verdict, result.content, { isError: result.status === "error" });
  if (verdict.warning) {
    result.content = Array.isArray(result.content)
      ? [{ type: "text", text: verdict.warning }, ...(result.content as unknown[])]
      : verdict.withWarning(result.content);
  }
  return result;
}

function isToolMessage(value: unknown): value is ToolMessage {
  return typeof value === "object" && value !== null && "tool_call_id" in value && "content" in value;
}

function asCall(call: ToolCall): Call {
  return { tool: call.name, arguments: call.args, callId: call.id };
}

function answer(call: ToolCall, content: string, isAnswer: boolean) {
  const status = isAnswer ? "success" : "error";
  return { type: "tool", role: "tool", content, name: call.name, tool_call_id: call.id, status };
}
