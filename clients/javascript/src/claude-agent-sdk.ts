/** Claude Agent SDK: hooks that guard every tool of a query, those of MCP servers and sub-agents included. */

import type { Guard } from "./guard.js";
import type { Session } from "./session.js";
import type { SessionChoice } from "./sessions.js";
import { partsText } from "./wire.js";

interface HookInput {
  session_id: string;
  cwd?: string;
  agent_id?: string;
  tool_name: string;
  tool_input: unknown;
  tool_response?: unknown;
  error?: string;
}

// The SDK passes what its event has, and takes what the event knows.
type Hook = (input: any, callId: string | undefined, options: { signal: AbortSignal }) => Promise<any>;

/**
 * Return the hooks for a query: `query({ prompt, options: { hooks: loopguardHooks(guard) } })`.
 *
 * A blocked call is denied with its message. `stop` also ends the run. The session is that of the SDK; a sub-agent has
 * the session `<session>/<agent>`, as with the hooks of Claude Code.
 */
export function loopguardHooks(guard: Guard, choice: SessionChoice<HookInput> = {}) {
  function sessionOf(input: HookInput): Session {
    const given = typeof choice.session === "function" ? choice.session(input) : choice.session;
    const outer = given || input.session_id;
    if (!input.agent_id) return guard.session(outer, { agent: choice.agent });
    return guard.session(`${outer}/${input.agent_id}`, { agent: choice.agent, parent: outer });
  }

  const before: Hook = async (input: HookInput, callId, { signal }) => {
    const options = { callId, cwd: input.cwd, signal };
    const verdict = await sessionOf(input).check(input.tool_name, input.tool_input, options);
    const hookEventName = "PreToolUse" as const;
    if (verdict.mayRun) {
      return verdict.warning ? { hookSpecificOutput: { hookEventName, additionalContext: verdict.warning } } : {};
    }
    // Without the denial, the call would run before the run ends.
    const denial = { hookEventName, permissionDecision: "deny", permissionDecisionReason: verdict.message };
    const end = verdict.decision === "stop" ? { continue: false, stopReason: verdict.message } : {};
    return { hookSpecificOutput: denial, ...end };
  };
  const after: Hook = async (input: HookInput, callId) => {
    sessionOf(input).result(callId ?? "", partsText(input.tool_response));
    return {};
  };
  const failed: Hook = async (input: HookInput, callId) => {
    sessionOf(input).result(callId ?? "", input.error, { isError: true });
    return {};
  };
  return {
    PreToolUse: [{ hooks: [before] }],
    PostToolUse: [{ hooks: [after] }],
    PostToolUseFailure: [{ hooks: [failed] }],
  };
}
