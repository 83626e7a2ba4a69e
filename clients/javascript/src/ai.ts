/** Vercel AI SDK 6 and 7: guards the tools of `generateText`, `streamText` and `ToolLoopAgent`. */

import type { Verdict } from "./calls.js";
import { forgetOldest } from "./fallback.js";
import type { Guard } from "./guard.js";
import { type SessionChoice, sessionOf } from "./sessions.js";
import { dumps, plain } from "./wire.js";

const MAX_VERDICTS = 1_000;
const MAX_STEPS = 20;

interface Step {
  toolCalls: { toolCallId: string }[];
}

// Conditions of both versions take steps of their own types.
export type StopWhen = (options: { steps: any[] }) => boolean | PromiseLike<boolean>;

/** What the SDK tells a tool about its call. */
export interface ToolCallContext {
  toolCallId: string;
  messages: readonly object[];
  abortSignal?: AbortSignal;
}

interface ModelOutput {
  type: string;
  value: unknown;
}

interface AnyTool {
  execute?: (input: unknown, context: ToolCallContext) => unknown;
  toModelOutput?: (options: { toolCallId: string; input: unknown; output: unknown }) => unknown;
}

export interface AiOptions<TOOLS> extends SessionChoice<ToolCallContext> {
  tools: TOOLS;
  /** Conditions that end the run as well; without them, it ends after 20 steps. */
  stopWhen?: StopWhen | readonly StopWhen[];
}

/**
 * Return `tools` and `stopWhen` of a run or agent: `generateText({ model, prompt, ...loopguard(guard, { tools }) })`.
 *
 * A blocked call gets the message as its result; the other calls of the step run. `stop` ends the run after the step.
 * Without `session`, each run is a session of its own, unless it is inside of `session.run`.
 */
export function loopguard<TOOLS extends object>(
  guard: Guard,
  options: AiOptions<TOOLS>,
): { tools: TOOLS; stopWhen: StopWhen[] } {
  const verdicts = new Map<string, Verdict>();
  const tools = Object.entries(options.tools).map(([name, tool]) => [name, guarded(name, tool as AnyTool)]);
  const ends = [options.stopWhen ?? (({ steps }) => steps.length >= MAX_STEPS)].flat() as StopWhen[];
  const isStopped: StopWhen = ({ steps }) =>
    ((steps.at(-1) as Step | undefined)?.toolCalls ?? []).some(
      ({ toolCallId }) => verdicts.get(toolCallId)?.decision === "stop",
    );
  return { tools: Object.fromEntries(tools) as TOOLS, stopWhen: [isStopped, ...ends] };

  function guarded(name: string, tool: AnyTool): AnyTool {
    const execute = tool.execute?.bind(tool);
    if (!execute) return tool; // the provider or the browser runs it

    async function check(input: unknown, context: ToolCallContext) {
      const { toolCallId: callId, abortSignal: signal } = context;
      const session = sessionOf(guard, options, context, context.messages[0]);
      const verdict = await session.check(name, input, { callId, signal });
      verdicts.set(callId, verdict);
      forgetOldest(verdicts, MAX_VERDICTS);
      return { session, verdict };
    }

    return {
      ...tool,
      execute: isGenerator(tool.execute)
        ? async function* (input, context): AsyncGenerator<unknown, void> {
            const { session, verdict } = await check(input, context);
            if (!verdict.mayRun) return void (yield verdict.message);
            let last: unknown;
            try {
              for await (last of execute(input, context) as AsyncIterable<unknown>) yield last;
            } catch (error) {
              session.result(verdict, error, { isError: true });
              throw error;
            }
            session.result(verdict, last);
            if (verdict.warning && typeof last === "string") yield verdict.withWarning(last);
          }
        : async (input, context) => {
            const { session, verdict } = await check(input, context);
            if (!verdict.mayRun) return verdict.message;
            return verdict.withWarning(await session.ran(verdict, () => lastOf(execute(input, context))));
          },
      toModelOutput: async (given) => {
        const verdict = verdicts.get(given.toolCallId);
        const isText = typeof given.output === "string";
        if (verdict && !verdict.mayRun && given.output === verdict.message) {
          return { type: "text", value: verdict.message };
        }
        const own = await tool.toModelOutput?.(given);
        const output = own ?? { type: isText ? "text" : "json", value: plain(given.output) };
        return isText || !verdict?.warning ? output : withWarning(verdict.warning, output as ModelOutput);
      },
    };
  }
}

/** Put a warning in front of what the model reads of a result. */
function withWarning(warning: string, { type, value }: ModelOutput): ModelOutput {
  if (type === "content") return { type, value: [{ type: "text", text: warning }, ...(value as unknown[])] };
  return { type: "text", value: `${warning}\n\n${typeof value === "string" ? value : dumps(value)}` };
}

function isGenerator(run: unknown): boolean {
  return typeof run === "function" && /^(Async)?GeneratorFunction$/.test(run.constructor.name);
}

/** Return the last value of a tool that gives several, and of any other tool its result. */
async function lastOf(result: unknown): Promise<unknown> {
  if (typeof result !== "object" || result === null || !(Symbol.asyncIterator in result)) return await result;
  let last: unknown;
  for await (last of result as AsyncIterable<unknown>);
  return last;
}
