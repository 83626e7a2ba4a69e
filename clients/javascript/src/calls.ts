/** Calls, verdicts, and the errors that keep a call from running. */

export type Decision = "allow" | "warn" | "block" | "hold" | "stop";

/** What a blocked call asks of the agent. */
export type Ending = "" | "finish" | "reuse" | "delay";

export const STRENGTH: Readonly<Record<Decision, number>> = { allow: 0, warn: 1, hold: 2, block: 3, stop: 4 };

/** A call that an agent wants to make. */
export interface Call {
  /** Name of the tool, at most 128 characters; longer names are cut. */
  tool: string;
  /** The arguments, or their JSON text as the model wrote it. */
  arguments?: unknown;
  /** The id that the model gave to the call. Without one, the client assigns one. */
  callId?: string | undefined;
  /** The directory in which the call runs: a command of a shell is another call in another one. */
  cwd?: string | undefined;
}

export interface VerdictFields {
  readonly tool: string;
  readonly callId: string;
  readonly decision: Decision;
  readonly message?: string;
  readonly source?: "server" | "client";
  readonly reason?: string;
  readonly incident?: string;
  readonly finding?: Readonly<Record<string, unknown>>;
  readonly approval?: Readonly<Record<string, unknown>>;
  readonly ending?: Ending;
  readonly retryAfterSeconds?: number;
}

/** What to do with a call. */
export class Verdict {
  readonly tool: string;
  readonly callId: string;
  /**
   * `allow`: run it. `warn`: run it and put `message` in front of the result. `block`: do not run it, `message` is the
   * result. `stop`: do not run it and end the run. `hold` only if waiting was disabled: do not run it yet.
   */
  readonly decision: Decision;
  /** For the model; empty for `allow`. */
  readonly message: string;
  /** `client` if the server gave no verdict and the client decided. */
  readonly source: "server" | "client";
  /** Why the server gave no verdict; empty otherwise. */
  readonly reason: string;
  /** Id of the incident on the server, if there is one. */
  readonly incident: string;
  /** As the API returns it; empty if there is none. */
  readonly finding: Readonly<Record<string, unknown>>;
  /** As the API returns it; empty if there is none. */
  readonly approval: Readonly<Record<string, unknown>>;
  /**
   * `finish`: answer with what is known, use no more tools. `reuse`: the message contains the known answer of the call.
   * `delay`: the pause is longer than the guard waits. Empty for any other block.
   */
  readonly ending: Ending;
  /** Of a `delay`: the pause after which the call may be made again. */
  readonly retryAfterSeconds: number;

  constructor(fields: VerdictFields) {
    this.tool = fields.tool;
    this.callId = fields.callId;
    this.decision = fields.decision;
    this.message = fields.message ?? "";
    this.source = fields.source ?? "server";
    this.reason = fields.reason ?? "";
    this.incident = fields.incident ?? "";
    this.finding = fields.finding ?? {};
    this.approval = fields.approval ?? {};
    this.ending = fields.ending ?? "";
    this.retryAfterSeconds = fields.retryAfterSeconds ?? 0;
  }

  /** Whether the call may run now. */
  get mayRun(): boolean {
    return this.decision === "allow" || this.decision === "warn";
  }

  /** Whether the message contains the known answer of a call that did not run; it is not an error then. */
  get isAnswer(): boolean {
    return this.decision === "block" && this.ending === "reuse";
  }

  /** The text to put in front of the result; empty if there is none. */
  get warning(): string {
    return this.decision === "warn" ? this.message : "";
  }

  /** Return the result of the call; a text has the warning, if there is one, in front of it. */
  withWarning<T>(content: T): T {
    return this.warning && typeof content === "string" ? (`${this.warning}\n\n${content}` as T) : content;
  }

  /** Return this verdict with other values. */
  with(fields: Partial<VerdictFields>): Verdict {
    return new Verdict({ ...this, ...fields });
  }

  /** Throw `CallBlocked` or `RunStopped` unless the call may run. */
  throwIfRefused(): void {
    if (this.decision === "stop") throw new RunStopped(this);
    if (!this.mayRun) throw new CallBlocked(this);
  }
}

/** Base class of the errors of this package. */
export class LoopGuardError extends Error {
  constructor(readonly verdict: Verdict) {
    super(verdict.message);
    this.name = new.target.name;
  }
}

/** A call must not run; the run may continue. The text is the message for the model. */
export class CallBlocked extends LoopGuardError {}

/** The run must end. The text is the message for the user. */
export class RunStopped extends LoopGuardError {}
