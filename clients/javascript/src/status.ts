/** Whether calls are guarded, and the circuit breaker that decides when to try the server again. */

import { now } from "./fallback.js";

const FAILURES_TO_OPEN = 3;
const FIRST_PAUSE_SECONDS = 1;
const LONGEST_PAUSE_SECONDS = 30;

/** The state of a guard. */
export interface Status {
  /** The last request got no verdict, so that the client decides by itself. */
  readonly degraded: boolean;
  /** Why; empty if not degraded. */
  readonly reason: string;
  /** Calls without a verdict of the server since the guard was created. */
  readonly unguardedCalls: number;
  /** Calls and results that the server does not have yet. */
  readonly waitingEvents: number;
  /** Calls and results that it will never have: there were too many, or it rejected them. */
  readonly droppedEvents: number;
}

/**
 * How long the reports of calls and results wait, because the server takes no more for now (429). It still gives
 * verdicts, so that this does not concern the breaker.
 */
export class Pause {
  private until = -LONGEST_PAUSE_SECONDS;

  /** How long reports are pointless; 0 if they may be sent. */
  get seconds(): number {
    return Math.max(this.until - now(), 0);
  }

  /** Wait for as long as the server demands, within the pauses of the breaker; return whether that is news. */
  begin(seconds: number): boolean {
    const isNew = now() - this.until > LONGEST_PAUSE_SECONDS;
    this.until = now() + Math.min(Math.max(seconds, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS);
    return isNew;
  }
}

/**
 * Stops requests to a server that does not answer, so that calls are not delayed each time. After three failures in a
 * row it opens for a second, then for twice as long each time, up to thirty seconds. When that time is over, one
 * request tries the server; its success closes the breaker.
 */
export class CircuitBreaker {
  /** Why the last request got no verdict; empty if it got one. */
  reason = "";
  private failures = 0;
  private pause = FIRST_PAUSE_SECONDS;
  private openUntil = 0;
  private isTrying = false;

  constructor(private readonly onChange: (reason: string) => void) {}

  /** Whether a request may be sent; the caller then reports `succeeded` or `failed`. */
  permits(): boolean {
    if (this.failures < FAILURES_TO_OPEN) return true;
    if (this.isTrying || now() < this.openUntil) return false;
    this.isTrying = true;
    return true;
  }

  /** How long requests are pointless; 0 if one may be sent. */
  secondsUntilNextTry(): number {
    if (this.failures < FAILURES_TO_OPEN) return 0;
    return Math.max(this.openUntil - now(), this.isTrying ? FIRST_PAUSE_SECONDS : 0);
  }

  /** Close the breaker. */
  succeeded(): void {
    const changed = this.reason !== "";
    this.reason = "";
    this.failures = 0;
    this.isTrying = false;
    this.pause = FIRST_PAUSE_SECONDS;
    if (changed) this.onChange("");
  }

  /** Note that a permitted request was given up by the agent, not by the server. */
  abandoned(): void {
    this.isTrying = false;
  }

  /** Count a failure; one that does not pass by itself, such as a wrong key, opens at once for the longest pause. */
  failed(reason: string, retryAfterSeconds: number, isPermanent: boolean): void {
    const changed = this.reason !== reason;
    this.reason = reason;
    this.failures = isPermanent ? FAILURES_TO_OPEN : this.failures + 1;
    if (this.failures >= FAILURES_TO_OPEN) {
      const pause = Math.max(isPermanent ? LONGEST_PAUSE_SECONDS : this.pause, retryAfterSeconds);
      this.openUntil = now() + Math.min(pause, LONGEST_PAUSE_SECONDS);
      this.pause = Math.min(this.pause * 2, LONGEST_PAUSE_SECONDS);
    }
    this.isTrying = false;
    if (changed) this.onChange(reason);
  }
}
