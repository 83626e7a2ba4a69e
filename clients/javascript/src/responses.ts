/** The calls of a model response, for loops that are written with `openai` or `@anthropic-ai/sdk` alone. */

import type { Call, Verdict } from "./calls.js";
import type { CheckOptions, Session } from "./session.js";
import { content as textOf } from "./wire.js";

/** A chat completion, a response, or a message; also the message of a completion alone. */
export type ModelResponse = object;

/** One call of a response. */
export interface ResponseCall {
  readonly tool: string;
  readonly arguments: unknown;
  readonly callId: string;
  readonly verdict: Verdict;
}

type Shape = "chat" | "responses" | "anthropic";

/** Runs a tool by its name. */
export type RunTool = (tool: string, args: never) => unknown;

/** The calls of one model response, with their verdicts. */
export class ResponseCalls {
  private constructor(
    private readonly session: Session,
    private readonly shape: Shape,
    readonly items: readonly ResponseCall[],
  ) {}

  /** Ask about all calls of a response with one request. */
  static async checked(session: Session, response: ModelResponse, options: CheckOptions): Promise<ResponseCalls> {
    const [shape, calls] = read(response);
    const verdicts = await session.checkCalls(calls, options);
    const items = calls.map((call, index) => ({
      tool: call.tool,
      arguments: parsedArguments(call.arguments),
      callId: call.callId ?? "",
      verdict: verdicts[index] as Verdict,
    }));
    return new ResponseCalls(session, shape, items);
  }

  /** The verdict that ends the run, if there is one. */
  get stopped(): Verdict | undefined {
    return this.items.find((call) => call.verdict.decision === "stop")?.verdict;
  }

  /**
   * Run the calls that may run, at the same time, and return the messages for the model: their results, and the
   * messages of the calls that do not run. An error of a tool is its result. When the run is stopped, nothing runs.
   */
  // The messages have the type that the SDK expects where they are added to its list.
  async answers(run: RunTool): Promise<any[]> {
    const answers = await Promise.all(this.items.map((call) => this.answer(call, run)));
    return this.shape === "anthropic" && answers.length > 0 ? [{ role: "user", content: answers }] : answers;
  }

  private async answer(call: ResponseCall, run: RunTool): Promise<object> {
    const { verdict } = call;
    if (!verdict.mayRun) return this.message(call, verdict.message, !verdict.isAnswer);
    if (this.stopped) {
      const text = "Not run: the run was stopped.";
      this.session.result(verdict, text, { isError: true });
      return this.message(call, text, true);
    }
    try {
      const result = await this.session.ran(verdict, () => run(call.tool, call.arguments as never));
      return this.message(call, verdict.withWarning(result), false, verdict.warning);
    } catch (error) {
      return this.message(call, String(error), true);
    }
  }

  private message(call: ResponseCall, result: unknown, isError: boolean, warning = ""): object {
    const text = typeof result === "string" ? result : [warning, fullText(result)].filter(Boolean).join("\n\n");
    if (this.shape === "chat") return { role: "tool", tool_call_id: call.callId, content: text };
    if (this.shape === "responses") return { type: "function_call_output", call_id: call.callId, output: text };
    return { type: "tool_result", tool_use_id: call.callId, content: text, is_error: isError };
  }
}

interface AnyResponse {
  choices?: { message?: AnyResponse }[];
  tool_calls?: {
    id?: string;
    function?: { name: string; arguments: string };
    custom?: { name: string; input: string };
  }[];
  output?: { type: string; name?: string; call_id?: string; arguments?: string; input?: string }[];
  content?: unknown;
}

function read(given: ModelResponse): [Shape, Call[]] {
  const response = given as AnyResponse;
  if (Array.isArray(response.output)) {
    const calls = response.output.filter((item) => item.type === "function_call" || item.type === "custom_tool_call");
    return [
      "responses",
      calls.map((item) => ({ tool: item.name ?? "", arguments: item.arguments ?? item.input, callId: item.call_id })),
    ];
  }
  if (Array.isArray(response.content)) {
    const blocks = response.content as { type: string; name: string; input: unknown; id: string }[];
    const calls = blocks.filter((block) => block.type === "tool_use");
    return ["anthropic", calls.map((block) => ({ tool: block.name, arguments: block.input, callId: block.id }))];
  }
  const message = response.choices ? response.choices[0]?.message : response;
  const calls = message?.tool_calls ?? [];
  return [
    "chat",
    calls.map((call) => ({
      tool: call.function?.name ?? call.custom?.name ?? "",
      arguments: call.function?.arguments ?? call.custom?.input,
      callId: call.id,
    })),
  ];
}

function parsedArguments(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value || "{}") as unknown;
  } catch {
    return value;
  }
}

function fullText(value: unknown): string {
  try {
    return JSON.stringify(value) ?? "";
  } catch {
    return textOf(value) ?? "";
  }
}
