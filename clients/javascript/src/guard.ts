/** The guard of a process: configuration, requests to the server, and what happens while it is away. */

import { AsyncLocalStorage } from "node:async_hooks";

import { findCredentials } from "./credentials.js";
import { now } from "./fallback.js";
import type { ModelResponse, ResponseCalls } from "./responses.js";
import { type CheckOptions, type Event, Session, type SessionOptions } from "./session.js";
import { CircuitBreaker, Pause, type Status } from "./status.js";
import { NoAnswer, type Response, Transport, throwForStatus } from "./transport.js";
import * as wire from "./wire.js";

export const VERSION = "0.1.0";

/** How long a result waits to be sent with the next check. */
const FLUSH_SECONDS = 0.5;
const SEND_SECONDS = 5;
const BATCH_EVENTS = 100;
const MAX_WAITING_EVENTS = 10_000;
const MAX_SESSIONS = 1_000;
const TIMEOUT_HEADER = "LoopGuard-Timeout-Ms";

export interface GuardOptions {
  /** Address of the server; `LOOPGUARD_URL` by default, else what `loopguard login` stored. */
  url?: string | undefined;
  /** An API key with the scopes `guard` and `ingest`; `LOOPGUARD_KEY` by default, else the stored one. */
  key?: string | undefined;
  /** Names for the screens, and for settings by agent or model. */
  agent?: string;
  backend?: string;
  model?: string;
  /** Tags of all sessions, to find and contain them by. */
  tags?: readonly string[];
  /** Metadata of all sessions, as in `{ customer: "acme" }`. */
  metadata?: Readonly<Record<string, string>>;
  /** How long a check may take, except for a held call; 0.25 by default. Afterwards the client decides. */
  budgetSeconds?: number;
  /** Tools that do not run without a verdict, as names or patterns such as `delete_*`. All others run. */
  failClosed?: readonly string[];
  /** How long a held call waits for its approval, 120 by default; 0 returns the verdict `hold` at once. */
  holdSeconds?: number;
  /** How long a check waits for a delayed call, which runs then; 30 by default. A longer pause blocks the call. */
  maxDelaySeconds?: number;
  /** Called when the guard becomes degraded or recovers. */
  onStatus?: (status: Status) => void;
  /** Called with one sentence when an outage begins or ends, or events are lost; `console.warn` by default. */
  log?: (sentence: string) => void;
}

export interface ToolOptions {
  /** Name of the tool; the function's name by default. */
  name?: string;
  /** Return the message of a blocked call as its result instead of throwing `CallBlocked`. */
  messageAsResult?: boolean;
}

/**
 * Asks a LoopGuard server before each tool call, and decides by itself while the server is unreachable. Create one per
 * process and keep it.
 */
export class Guard {
  agent: string;
  backend: string;
  model: string;
  budgetSeconds: number;
  holdSeconds: number;
  maxDelaySeconds: number;
  readonly breaker: CircuitBreaker;
  private readonly pauseOfReports = new Pause();
  private readonly tags: readonly string[];
  private readonly failClosed: readonly RegExp[];
  private readonly options: GuardOptions;
  private readonly transport: Transport;
  private readonly key: string;
  private readonly live = new Map<string, Transport>();
  private readonly sessions = new Map<string, Session>();
  private readonly surrounding = new AsyncLocalStorage<Session>();
  private defaultSession: Session | undefined;
  private unguarded = 0;
  private dropped = 0;
  private timer: NodeJS.Timeout | undefined;
  private isSending = false;
  private isClosed = false;
  private maySendEvents = true;

  /** Throws a `TypeError` if address or key are missing or invalid. */
  constructor(options: GuardOptions = {}) {
    const found = findCredentials(options.url, options.key);
    this.options = options;
    this.agent = options.agent ?? "";
    this.backend = options.backend ?? "";
    this.model = options.model ?? "";
    this.budgetSeconds = options.budgetSeconds ?? 0.25;
    this.holdSeconds = options.holdSeconds ?? 120;
    this.maxDelaySeconds = options.maxDelaySeconds ?? 30;
    if (!(this.budgetSeconds > 0)) throw new TypeError("`budgetSeconds` must be more than 0.");
    if (typeof options.tags === "string") throw new TypeError("`tags` must be a list of tags.");
    if (typeof options.failClosed === "string") throw new TypeError("`failClosed` must be a list of tools.");
    const surrounding = (process.env["LOOPGUARD_TAGS"] ?? "").split(","); // those of `loopguard run`
    this.tags = [...(options.tags ?? []), ...surrounding.map((tag) => tag.trim()).filter(Boolean)];
    this.failClosed = (options.failClosed ?? []).map(pattern);
    this.transport = new Transport(found.url, found.key, `loopguard-client/${VERSION}`);
    this.key = found.key;
    this.breaker = new CircuitBreaker((reason) => this.statusChanged(reason));
    atExit(this);
  }

  /** Address of the server. */
  get url(): string {
    return this.transport.url;
  }

  /** Whether calls are guarded, and which events the server has not received. */
  get status(): Status {
    const { reason } = this.breaker;
    return {
      degraded: this.degraded,
      reason,
      unguardedCalls: this.unguarded,
      waitingEvents: this.waitingEvents(),
      droppedEvents: this.dropped,
    };
  }

  /** Whether the client decides by itself, because the last request got no verdict. */
  get degraded(): boolean {
    return this.breaker.reason !== "";
  }

  // Sessions

  /**
   * Return the session of a name, or a new one. The name is any text that names the conversation, at most 256
   * characters.
   */
  session(name = "", options: SessionOptions = {}): Session {
    const given = name ? wire.name(name) : wire.newId(`${options.agent || this.agent || "agent"}-`);
    const session = this.sessions.get(given) ?? new Session(this, given, !name);
    session.tags = [...new Set([...this.tags, ...session.tags, ...(options.tags ?? [])])];
    session.metadata = { ...this.options.metadata, ...session.metadata, ...options.metadata };
    session.agent = options.agent || session.agent || this.agent;
    session.backend = options.backend || session.backend || this.backend;
    session.model = options.model || session.model || this.model;
    session.parent = options.parent || session.parent;
    this.sessions.delete(given);
    this.sessions.set(given, session);
    for (const [key, other] of this.sessions) {
      if (this.sessions.size <= MAX_SESSIONS || other === session) break;
      if (other.outbox.length === 0) this.sessions.delete(key);
    }
    return session;
  }

  /** Return the session of the surrounding `session.run`, if there is one. */
  surroundingSession(): Session | undefined {
    return this.surrounding.getStore();
  }

  /** Return the session of the surrounding `session.run`, else one that this process uses for all other calls. */
  currentSession(): Session {
    return this.surroundingSession() ?? (this.defaultSession ??= this.session());
  }

  /** Run a function inside of a session; use `session.run`. */
  inSession<R>(session: Session, block: () => R): R {
    return this.surrounding.run(session, block);
  }

  /**
   * Return a function that is guarded: each call is checked, and runs if it may. Throws `CallBlocked` or `RunStopped`
   * otherwise. A warning is put in front of a result that is a text.
   *
   * The arguments of the tool are the fields of the object that the function is called with; a function with several
   * parameters has them as the list `args`.
   */
  tool<A extends unknown[], R>(run: (...args: A) => R, options: ToolOptions = {}): (...args: A) => Promise<Awaited<R>> {
    if (/^(Async)?GeneratorFunction$/.test(run.constructor.name)) {
      throw new TypeError("A generator cannot be guarded: its calls run while their results are read.");
    }
    const tool = options.name || run.name || "unnamed";
    const guard = this;
    return async function (this: unknown, ...args: A): Promise<Awaited<R>> {
      const given = args.length === 0 ? {} : args.length === 1 && wire.isObject(args[0]) ? args[0] : { args };
      const verdict = await guard.currentSession().check(tool, given);
      if (options.messageAsResult && !verdict.mayRun && verdict.decision !== "stop") {
        return verdict.message as Awaited<R>;
      }
      verdict.throwIfRefused();
      return verdict.withWarning(await guard.currentSession().ran(verdict, () => run.apply(this, args)));
    };
  }

  /** Return the calls of a model response of `openai` or `@anthropic-ai/sdk` with their verdicts. */
  async calls(response: ModelResponse, options: CheckOptions = {}): Promise<ResponseCalls> {
    return this.currentSession().calls(response, options);
  }

  /** Return whether a tool does not run without a verdict. */
  failsClosed(tool: string): boolean {
    return this.failClosed.some((one) => one.test(tool));
  }

  // Requests, for sessions

  /** Send a request; `program` is what the calls pass through. */
  post(path: string, document: unknown, seconds: number, signal?: AbortSignal, program = ""): Promise<Response> {
    const milliseconds = String(Math.max(1, Math.floor(seconds * 1000)));
    const headers: Record<string, string> = path === "/guard" ? { [TIMEOUT_HEADER]: milliseconds } : {};
    if (program) headers["User-Agent"] = `loopguard-client/${VERSION} ${program}`;
    return this.transport.send("POST", path, document, { seconds, headers, signal });
  }

  /** Send a request to the server, or to its address for live connections. */
  get(path: string, seconds: number, waitUrl: string, signal?: AbortSignal): Promise<Response> {
    const base = waitUrl.split("/api/v1")[0] || this.url;
    let transport = base === this.url ? this.transport : this.live.get(base);
    if (!transport) {
      transport = new Transport(base, this.key, `loopguard-client/${VERSION}`);
      this.live.set(base, transport);
    }
    return transport.send("GET", path, undefined, { seconds, signal });
  }

  /** Count a request that got no verdict, and return the reason. */
  noteFailure(error: unknown): string {
    const reason = error instanceof Error ? error.message : String(error);
    if (error instanceof NoAnswer && error.isRejected) {
      // The server works; this request was wrong. Say so, and keep asking for the others.
      this.breaker.succeeded();
      this.log(`LoopGuard rejected a call, which is not guarded: ${reason}`);
    } else {
      const known = error instanceof NoAnswer ? error : new NoAnswer();
      this.breaker.failed(reason, known.retryAfterSeconds, known.isPermanent);
    }
    return reason;
  }

  /** Count a report that failed; too many of them do not keep the client from asking for verdicts. */
  private noteFailedReport(error: unknown): void {
    if (!(error instanceof NoAnswer && error.isTooMany)) {
      this.noteFailure(error);
      return;
    }
    this.breaker.abandoned();
    if (this.pauseOfReports.begin(error.retryAfterSeconds)) {
      this.log(`LoopGuard gives verdicts, and takes reports later: ${error.message}`);
    }
  }

  /** Count calls without a verdict of the server. */
  noteUnguarded(number: number): void {
    this.unguarded += number;
    this.wake();
  }

  /** Forget events that the server has stored, or will never accept; throw `NoAnswer` if they must be sent again. */
  settle(session: Session, events: readonly Event[], response: Response): void {
    try {
      throwForStatus(this.url, response);
    } catch (error) {
      if (!(error instanceof NoAnswer && error.isRejected)) throw error;
      session.delivered(events);
      this.drop(events.length, error.message);
      return;
    }
    session.delivered(events);
    const rejected = response.document["rejected"];
    if (Array.isArray(rejected) && rejected.length > 0) {
      const first = rejected[0] as { code?: unknown; hint?: unknown };
      this.drop(rejected.length, `${String(first.code)}: ${String(first.hint)}`);
    }
  }

  private drop(number: number, reason: string): void {
    this.dropped += number;
    this.log(`LoopGuard did not receive ${number} events of this agent: ${reason}`);
  }

  private statusChanged(reason: string): void {
    this.log(reason ? `LoopGuard gives no verdicts: ${reason}` : "LoopGuard answers again.");
    try {
      this.options.onStatus?.(this.status);
    } catch (error) {
      this.log(`\`onStatus\` failed: ${String(error)}`);
    }
  }

  private log(sentence: string): void {
    try {
      (this.options.log ?? console.warn)(sentence);
    } catch {
      // Nothing here may break an agent.
    }
  }

  // The background sender

  /** Let the background sender send the waiting events soon. It does not keep the process alive. */
  wake(): void {
    if (this.isClosed || this.timer) return;
    if (this.degraded) this.bound();
    const waits = [this.breaker.secondsUntilNextTry(), this.pauseOfReports.seconds];
    const seconds = Math.max(FLUSH_SECONDS, ...waits);
    this.timer = setTimeout(() => void this.sendWaiting(), seconds * 1000);
    this.timer.unref();
  }

  private async sendWaiting(): Promise<void> {
    this.timer = undefined;
    if (this.isSending) return;
    this.isSending = true;
    this.bound();
    try {
      for (const session of this.withEvents()) {
        while (session.outbox.length > 0 && this.breaker.permits()) {
          await this.send(session, SEND_SECONDS);
          this.breaker.succeeded();
        }
      }
    } catch (error) {
      this.noteFailedReport(error);
    } finally {
      this.isSending = false;
      if (this.waitingEvents() > 0) this.wake();
    }
  }

  private async send(session: Session, seconds: number): Promise<void> {
    let events = session.outbox.slice(0, BATCH_EVENTS);
    if (this.maySendEvents) {
      const response = await this.post("/events", { events }, seconds);
      if (response.status !== 403) return this.settle(session, events, response);
      this.maySendEvents = false;
    }
    // A key that may only ask can still report results.
    const others = events.filter((event) => event.type !== "result");
    if (others.length > 0) {
      session.delivered(others);
      this.drop(others.length, "the key has no scope `ingest`.");
    }
    events = events.filter((event) => event.type === "result");
    if (events.length === 0) return;
    this.settle(session, events, await this.post("/guard", { session: session.name, results: events }, seconds));
  }

  private withEvents(): Session[] {
    return [...this.sessions.values()].filter((session) => session.outbox.length > 0);
  }

  private waitingEvents(): number {
    let number = 0;
    for (const session of this.sessions.values()) number += session.outbox.length;
    return number;
  }

  /** Drop the oldest events beyond the limit of memory. */
  private bound(): void {
    let surplus = this.waitingEvents() - MAX_WAITING_EVENTS;
    for (const session of surplus > 0 ? this.withEvents() : []) {
      const dropped = session.outbox.splice(0, surplus).length;
      this.drop(dropped, `more than ${MAX_WAITING_EVENTS} waited.`);
      if ((surplus -= dropped) <= 0) break;
    }
  }

  /** Send the waiting events now, for at most so many seconds; return whether the server has everything. */
  async flush(seconds = 2): Promise<boolean> {
    const deadline = now() + seconds;
    for (const session of this.sessions.values()) session.reportUsage();
    try {
      for (const session of this.withEvents()) {
        while (session.outbox.length > 0) {
          if (now() >= deadline) return false;
          await this.send(session, deadline - now());
        }
      }
    } catch (error) {
      this.noteFailedReport(error);
      return false;
    }
    return true;
  }

  /** Send the waiting events, and end the background sender; return whether the server has everything. */
  async close(seconds = 2): Promise<boolean> {
    this.isClosed = true;
    clearTimeout(this.timer);
    return this.flush(seconds);
  }
}

/** Return the regular expression of a pattern with `*`, `?` and `[…]`. */
function pattern(text: string): RegExp {
  const parts = text.split(/(\*+|\?|\[[^\]]+\])/).map((part, index) => {
    if (index % 2 === 0) return part.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    if (part.startsWith("[")) return part.replace("[!", "[^").replaceAll("\\", "\\\\");
    return part === "?" ? "." : ".*";
  });
  return new RegExp(`^${parts.join("")}$`, "s");
}

const guards = new Set<WeakRef<Guard>>();

/** Let a process that has nothing left to do send what waits. */
function atExit(guard: Guard): void {
  if (guards.size === 0) process.on("beforeExit", () => void sendRest());
  for (const known of guards) if (!known.deref()) guards.delete(known);
  guards.add(new WeakRef(guard));
}

async function sendRest(): Promise<void> {
  for (const known of guards) {
    const guard = known.deref();
    if (guard && !guard.degraded && guard.status.waitingEvents > 0) await guard.close(1);
  }
}
