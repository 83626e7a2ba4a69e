/** Client of a LoopGuard server: guards the tool calls of an agent. */

export { type Call, CallBlocked, type Decision, type Ending, LoopGuardError, RunStopped, Verdict } from "./calls.js";
export { Guard, type GuardOptions, type ToolOptions, VERSION } from "./guard.js";
export { type ModelResponse, type ResponseCall, ResponseCalls, type RunTool } from "./responses.js";
export { type CallOptions, type CheckOptions, Session, type SessionOptions, type Usage } from "./session.js";
export type { Status } from "./status.js";
