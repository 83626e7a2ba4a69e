/** OpenAI Agents SDK: guards every function tool of every agent, also behind hand-offs and of agents used as tools. */

import type { Verdict } from "./calls.js";
import { forgetOldest } from "./fallback.js";
import type { Guard } from "./guard.js";
import type { Session } from "./session.js";
import { type SessionChoice, sessionOf } from "./sessions.js";

const MAX_VERDICTS = 1_000;

interface GuardrailData {
  context: object;
  agent: { name: string };
  toolCall: { name: string; callId: string; arguments: string; namespace?: string };
  output?: unknown;
}

interface FunctionTool {
  type: string;
  name: string;
  inputGuardrails?: object[];
  outputGuardrails?: object[];
  invoke: (context: never, input: string, details?: never) => Promise<unknown>;
}

interface AgentClass {
  prototype: { getAllTools(...args: any[]): Promise<any[]> };
}

/**
 * Guard the tools of all agents of this process, those of MCP servers included: `guardAgents(guard, Agent)`.
 *
 * A blocked call gets the message as its output. `stop` throws a `ToolCallError` out of the run: its `error` is a
 * `ToolInputGuardrailTripwireTriggered`, whose `result.output.outputInfo` is the verdict. Hosted tools run at the
 * provider and cannot be guarded. The session is that of the surrounding `session.run`, else a new one for each run. An
 * agent that runs as a tool has the session `<session>/<tool>`. Returns a function that ends it.
 */
export function guardAgents(guard: Guard, Agent: AgentClass, choice: SessionChoice<GuardrailData> = {}): () => void {
  const { prototype } = Agent;
  const original = prototype.getAllTools;
  const attached = new WeakSet<object>();
  const verdicts = new Map<string, Verdict>();
  let isEnded = false;

  prototype.getAllTools = async function (...args) {
    const tools = await original.apply(this, args);
    for (const tool of tools as FunctionTool[]) {
      if (tool.type === "function" && !attached.has(tool)) attach(tool);
    }
    return tools;
  };

  function attach(tool: FunctionTool): void {
    attached.add(tool);
    tool.inputGuardrails = [...(tool.inputGuardrails ?? []), before];
    // The first output guardrail that replaces the output is the last one that runs.
    tool.outputGuardrails = [...(tool.outputGuardrails ?? []), after];
    const invoke = tool.invoke;
    // An agent that the tool runs belongs to a session of its own.
    tool.invoke = (context, input, details) => {
      const outer = isEnded
        ? undefined
        : running.get((details as { toolCall?: object } | undefined)?.toolCall as object);
      if (!outer) return invoke.call(tool, context, input, details);
      const inner = guard.session(`${outer.name}/${tool.name}`, { parent: outer.name });
      return inner.run(() => invoke.call(tool, context, input, details));
    };
  }

  const running = new WeakMap<object, Session>();

  function session(data: GuardrailData): Session {
    return sessionOf(guard, choice, data, data.context);
  }

  const before = {
    type: "tool_input",
    name: "loopguard",
    run: async (data: GuardrailData) => {
      if (isEnded) return { behavior: { type: "allow" } };
      const { toolCall } = data;
      const asked = session(data);
      asked.agent = data.agent.name || asked.agent;
      const tool = toolCall.namespace ? `${toolCall.namespace}.${toolCall.name}` : toolCall.name;
      const verdict = await asked.check(tool, toolCall.arguments || "{}", { callId: toolCall.callId });
      if (verdict.decision === "stop") return { behavior: { type: "throwException" }, outputInfo: verdict };
      if (!verdict.mayRun) {
        return { behavior: { type: "rejectContent", message: verdict.message }, outputInfo: verdict };
      }
      running.set(toolCall, asked);
      verdicts.set(`${asked.name}\n${toolCall.callId}`, verdict);
      forgetOldest(verdicts, MAX_VERDICTS);
      return { behavior: { type: "allow" }, outputInfo: verdict };
    },
  };

  const after = {
    type: "tool_output",
    name: "loopguard",
    run: async (data: GuardrailData) => {
      const asked = session(data);
      const key = `${asked.name}\n${data.toolCall.callId}`;
      const verdict = verdicts.get(key);
      verdicts.delete(key);
      if (!verdict) return { behavior: { type: "allow" } }; // a call that did not run
      asked.result(verdict, data.output);
      if (!verdict.warning || typeof data.output !== "string") return { behavior: { type: "allow" } };
      return { behavior: { type: "rejectContent", message: verdict.withWarning(data.output) }, outputInfo: verdict };
    },
  };

  return () => {
    isEnded = true;
    if (prototype.getAllTools !== original) prototype.getAllTools = original;
  };
}
