/** Mastra: hooks and an input processor that guard the tools of an agent. */

import { RunStopped, type Verdict } from "./calls.js";
import type { Guard } from "./guard.js";
import type { Session } from "./session.js";
import { type SessionChoice, sessionOf } from "./sessions.js";

interface CallContext {
  toolName: string;
  input: unknown;
  context?: ToolContext;
  metadata?: { agentName?: string };
}

interface ToolContext {
  agent?: { toolCallId?: string; threadId?: string };
  requestContext?: object;
  abortSignal?: AbortSignal;
}

interface StepArguments {
  requestContext?: object;
  abort: (reason?: string) => never;
}

/**
 * Return `hooks` and `inputProcessors` of an agent: `new Agent({ …, ...loopguard(guard) })`.
 *
 * A blocked call gets the message as its result. `stop` ends the run before the next request to the model, with the
 * message as the reason of its tripwire. The session is the thread of the run, else a new one for each run.
 */
export function loopguard(guard: Guard, choice: SessionChoice<CallContext> = {}) {
  const running = new WeakMap<object, { session: Session; verdict: Verdict }>();
  const stopped = new WeakMap<object, Verdict>();

  function session(call: CallContext): Session {
    const { context, metadata } = call;
    const chosen = { ...choice, session: choice.session ?? context?.agent?.threadId ?? "" };
    const found = sessionOf(guard, chosen, call, context?.requestContext);
    found.agent ||= metadata?.agentName ?? "";
    return found;
  }

  return {
    hooks: {
      beforeToolCall: async (call: any) => {
        const { toolName, input, context } = call as CallContext;
        const asked = session(call as CallContext);
        const options = { callId: context?.agent?.toolCallId, signal: context?.abortSignal };
        const verdict = await asked.check(toolName, input, options);
        if (verdict.mayRun) {
          if (context) running.set(context, { session: asked, verdict });
          return undefined;
        }
        if (verdict.decision === "stop") {
          if (!context?.requestContext) throw new RunStopped(verdict);
          stopped.set(context.requestContext, verdict);
        }
        return { proceed: false as const, output: verdict.message };
      },
      afterToolCall: async (call: any) => {
        const { context, output, error } = call as CallContext & { output?: unknown; error?: unknown };
        const run = context && running.get(context);
        if (run) run.session.result(run.verdict, error ?? output, { isError: error !== undefined });
      },
    },
    inputProcessors: [
      {
        id: "loopguard" as const,
        processInputStep: async (given: any): Promise<undefined> => {
          const { requestContext, abort } = given as StepArguments;
          const verdict = requestContext && stopped.get(requestContext);
          if (!verdict) return undefined;
          stopped.delete(requestContext);
          return abort(verdict.message);
        },
      },
    ],
  };
}
