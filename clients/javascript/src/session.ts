/** One conversation or run of an agent: its calls, their results, and what the server does not have yet. */

import { setTimeout as sleep } from "node:timers/promises";

import { type Call, type Decision, type Ending, STRENGTH, Verdict } from "./calls.js";
import { LIMIT, LocalCounter, STOP_AFTER, forgetOldest, now } from "./fallback.js";
import type { Guard } from "./guard.js";
import { type ModelResponse, ResponseCalls } from "./responses.js";
import { NoAnswer, type Response, throwForStatus } from "./transport.js";
import * as wire from "./wire.js";

/** Events that a check sends along; more of them are left to the background sender. */
const MAX_EVENTS_BEFORE_CALL = 200;
const MAX_OPEN_CALLS = 1_000;

export type Event = { id: string; type: string } & Record<string, unknown>;

export interface CheckOptions {
  /**
   * Id of the model response. With it, identical calls of the response count once, even if they are
   * checked one by one. Reads all run; of identical writes, only the first does.
   */
  round?: string | undefined;
  /** Gives up: the check throws the reason of the signal, and the calls are reported as cancelled. */
  signal?: AbortSignal | undefined;
}

export type CallOptions = CheckOptions & Pick<Call, "callId" | "cwd">;

export interface SessionOptions {
  agent?: string | undefined;
  backend?: string | undefined;
  model?: string | undefined;
  /** Name of the session whose agent started this one. */
  parent?: string | undefined;
  /** Added to those of the guard and, of a known session, to those it has. */
  tags?: readonly string[] | undefined;
  /** As in `{ customer: "acme" }`; added in the same way. */
  metadata?: Readonly<Record<string, string>> | undefined;
}

export interface Usage {
  inputTokens?: number;
  outputTokens?: number;
  costUsd?: number;
}

/** A call on its way: what is sent, and what identical calls have in common. */
interface Checked {
  call: Call & { callId: string };
  event: Record<string, unknown> & { id: string; arguments: wire.SentArguments; call_id: string };
  key: string;
}

/** The calls of one agent, in order. Create it with `Guard.session`. */
export class Session {
  agent = "";
  backend = "";
  model = "";
  parent = "";
  tags: readonly string[] = [];
  metadata: Readonly<Record<string, string>> = {};
  /** What the calls pass through: behind a proxy of tools (`mcp`), a stop ends no run. */
  program = "";
  /** Events that the server has not acknowledged, oldest first. */
  outbox: Event[] = [];
  private readonly counter = new LocalCounter();
  private readonly open = new Map<string, Checked>();
  private readonly usedIds = new Map<string, number>();
  private readonly asking = new Map<string, Promise<void>>();
  private stopped = "";
  private pendingUsage: Record<string, number> | undefined;

  constructor(
    readonly guard: Guard,
    /** Its name on the server. */
    readonly name: string,
    private readonly isNew: boolean,
  ) {}

  /** Return the verdict on one call; see `checkCalls`. */
  async check(tool: string, args: unknown = {}, options: CallOptions = {}): Promise<Verdict> {
    const call = { tool, arguments: args, callId: options.callId, cwd: options.cwd };
    return (await this.checkCalls([call], options))[0] as Verdict;
  }

  /**
   * Return the verdicts on the calls of one model response, in their order, with one request.
   *
   * Takes at most the budget of the guard, and for a held call the time to wait for its approval, for a delayed one its
   * pause. Never throws for a server that is away: the client decides then, and the verdict says so.
   */
  async checkCalls(calls: readonly Call[], options: CheckOptions = {}): Promise<Verdict[]> {
    if (calls.length === 0) return [];
    const { round = "", signal } = options;
    signal?.throwIfAborted();
    const at = new Date().toISOString(); // of calls with one time, LoopGuard knows that one answer makes them
    const checked = calls.map((call) => this.prepared(call, round, at));
    if (this.pendingUsage && checked[0]) {
      checked[0].event["usage"] = this.pendingUsage;
      this.pendingUsage = undefined;
    }
    const { breaker } = this.guard;
    if (!breaker.permits()) return this.decideAll(checked, breaker.reason);
    let verdicts: Verdict[];
    let leave = (): void => undefined;
    try {
      const deadline = now() + this.guard.budgetSeconds;
      if (!round) {
        // Of identical calls, the server must have one before the next can say that it is another one.
        leave = await this.turnOf(checked, deadline, signal);
        this.countCopies(checked);
      }
      verdicts = verdictsOf(checked, await this.ask(checked, round, deadline, signal));
      this.remember(checked, verdicts);
    } catch (error) {
      if (signal?.aborted) {
        breaker.abandoned();
        this.abandon(checked);
        throw signal.reason;
      }
      return this.decideAll(checked, this.guard.noteFailure(error));
    } finally {
      leave();
    }
    const answered = now();
    breaker.succeeded();
    this.stopped = verdicts.find((verdict) => verdict.decision === "stop")?.message ?? "";
    for (const [index, one] of checked.entries()) {
      const verdict = verdicts[index] as Verdict;
      if (verdict.decision === "hold" && this.guard.holdSeconds > 0) {
        verdicts[index] = await this.held(verdict, signal);
      } else if (verdict.ending === "delay" && verdict.retryAfterSeconds <= this.guard.maxDelaySeconds) {
        // The pauses of one response began together.
        verdicts[index] = await this.delayed(one, verdict, answered + verdict.retryAfterSeconds, signal);
      }
    }
    for (const [index, one] of checked.entries()) {
      this.counter.observeVerdict(one.key, verdicts[index]?.mayRun === true);
    }
    this.remember(checked, verdicts);
    return verdicts;
  }

  /**
   * Report the result of a call. Returns at once; it is sent with the next check, or within a second.
   *
   * The call is its verdict or its id. Content that is not a text is sent as JSON; without content, only that the call
   * has ended.
   */
  result(call: Verdict | string, content?: unknown, options: { isError?: boolean } = {}): void {
    const callId = typeof call === "string" ? call : call.callId;
    const checked = this.open.get(callId);
    this.open.delete(callId);
    const text = wire.content(content);
    const isError = options.isError === true;
    const sentId = checked?.event.call_id ?? wire.name(callId);
    if (checked) this.counter.observeResult(checked.key, wire.digest(`${isError}${text}`));
    this.report("result", { call_id: sentId, content: text, is_error: isError });
  }

  /** Report that a call still runs and is not stalled. */
  heartbeat(call: Verdict | string): void {
    const callId = typeof call === "string" ? call : call.callId;
    this.report("heartbeat", { call_id: this.open.get(callId)?.event.call_id ?? wire.name(callId) });
  }

  /**
   * Run one call if it may run, and report its result or its error. Returns the result for the model: a text has the
   * warning, if there is one, in front of it. Throws `CallBlocked` or `RunStopped` if the call must not run.
   */
  async call<R>(tool: string, args: unknown, run: () => R, options: CallOptions = {}): Promise<Awaited<R>> {
    const verdict = await this.check(tool, args, options);
    verdict.throwIfRefused();
    return verdict.withWarning(await this.ran(verdict, run));
  }

  /** Run a call that may run, and report its result or its error. */
  async ran<R>(verdict: Verdict, run: () => R): Promise<Awaited<R>> {
    try {
      const content = await run();
      this.result(verdict, content);
      return content;
    } catch (error) {
      this.result(verdict, wire.plain(error), { isError: true });
      throw error;
    }
  }

  /** Return the calls of a model response of `openai` or `@anthropic-ai/sdk` with their verdicts. */
  async calls(response: ModelResponse, options: CheckOptions = {}): Promise<ResponseCalls> {
    return ResponseCalls.checked(this, response, options);
  }

  /** Report a message of the user. It starts a new run: repeating a call after it is not a loop. */
  userMessage(text?: string): void {
    this.counter.clear();
    this.reportUsage();
    this.report("message", { role: "user", content: wire.content(text) });
  }

  /**
   * Report the tokens and the cost of a model response. It counts for the first of the calls that follow, or with the
   * `round` of calls that were checked before, for the first of these, once.
   */
  usage(usage: Usage, options: { round?: string } = {}): void {
    const counts = {
      input_tokens: usage.inputTokens ?? 0,
      output_tokens: usage.outputTokens ?? 0,
      cost_usd: usage.costUsd ?? 0,
    };
    if (options.round) return this.report("usage", { usage: counts, round: wire.name(options.round) });
    this.reportUsage();
    this.pendingUsage = counts;
  }

  /** Report the usage of a response that no call followed; it counts for the session alone. */
  reportUsage(): void {
    const usage = this.pendingUsage;
    this.pendingUsage = undefined;
    if (usage) this.report("usage", { usage });
  }

  /** Report that the run has ended. */
  end(outcome: "completed" | "failed" | "cancelled" = "completed"): void {
    this.reportUsage();
    this.report("end", { outcome });
  }

  /**
   * Run a function whose guarded tools belong to this session, also after it awaits something. A session that was
   * created without a name ends with it.
   */
  async run<R>(block: () => R): Promise<Awaited<R>> {
    try {
      const value = await this.guard.inSession(this, block);
      if (this.isNew) this.end();
      return value;
    } catch (error) {
      if (this.isNew) this.end("failed");
      throw error;
    }
  }

  /** Forget events that the server has, or will never accept. */
  delivered(events: readonly Event[]): void {
    const known = new Set(events.map((event) => event.id));
    this.outbox = this.outbox.filter((event) => !known.has(event.id));
  }

  // Steps of a check

  private async turnOf(
    checked: readonly Checked[],
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<() => void> {
    const keys = checked.map((one) => one.key);
    for (;;) {
      const other = keys.map((key) => this.asking.get(key)).find(Boolean);
      if (!other) break;
      const wait = new AbortController();
      const giveUp = signal ? AbortSignal.any([signal, wait.signal]) : wait.signal;
      await Promise.race([other, pause(left(deadline), giveUp)]).finally(() => wait.abort());
    }
    let done = (): void => undefined;
    const asked = new Promise<void>((resolve) => (done = resolve));
    for (const key of keys) this.asking.set(key, asked);
    return () => {
      for (const key of keys) this.asking.delete(key);
      done();
    };
  }

  /** Give each copy of an open call a round of its own: copies in one round would count once and all run. */
  private countCopies(checked: readonly Checked[]): void {
    const seen = new Set(Array.from(this.open.values(), (one) => one.key));
    for (const one of checked) {
      if (seen.has(one.key)) one.event["round"] = one.event.id;
      seen.add(one.key);
    }
  }

  /** Send what the server does not have yet, then the calls. */
  private async ask(
    checked: readonly Checked[],
    round: string,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<Response> {
    let before = this.outbox.length > MAX_EVENTS_BEFORE_CALL ? [] : [...this.outbox];
    if (before.some((event) => event.type !== "result")) {
      const stored = await this.guard.post("/events", { events: before }, left(deadline), signal);
      this.guard.settle(this, before, stored);
      before = [];
    }
    const events = checked.map((one) => one.event);
    const document = { session: this.name, ...this.about(round), results: before, calls: events };
    let response = await this.guard.post("/guard", document, left(deadline), signal, this.program);
    try {
      throwForStatus(this.guard.url, response);
    } catch (error) {
      if (!(error instanceof NoAnswer && error.isRejected)) throw error;
      // One value is beyond the limits of the API. Digests never are; results can be rejected one by one.
      for (const one of checked) one.event.arguments = wire.cut(one.event.arguments);
      document.results = before = [];
      response = await this.guard.post("/guard", document, left(deadline), signal, this.program);
      throwForStatus(this.guard.url, response);
    }
    this.delivered(before);
    return response;
  }

  /** Wait until the approval of a held call is decided. */
  private async held(verdict: Verdict, signal: AbortSignal | undefined): Promise<Verdict> {
    const approval = String(verdict.approval["id"] ?? "");
    let waitUrl = String(verdict.approval["wait_url"] ?? "");
    const deadline = now() + this.guard.holdSeconds;
    while (approval && now() < deadline) {
      const wait = Math.max(1, Math.min(30, Math.floor(deadline - now())));
      const started = now();
      try {
        const path = `/approvals/${encodeURIComponent(approval)}?wait=${wait}`;
        const { status, document } = await this.guard.get(path, wait + 5, waitUrl, signal);
        const decision = document["decision"];
        if (status === 200 && isDecision(decision)) {
          return verdict.with({ decision, message: String(document["message"] ?? "") });
        }
        if ([401, 403, 404].includes(status)) break;
      } catch {
        signal?.throwIfAborted();
        waitUrl = ""; // the address for live connections may be out of reach; the API answers at once
      }
      await pause(1 - (now() - started), signal);
    }
    const message = verdict.message || `\`${verdict.tool}\` needs an approval, and nobody has decided yet.`;
    return verdict.with({ decision: "block", message: `${message} It did not run. Try something else.` });
  }

  /** Keep the pause of a delayed call, and send the call again. */
  private async delayed(
    one: Checked,
    verdict: Verdict,
    until: number,
    signal: AbortSignal | undefined,
  ): Promise<Verdict> {
    await pause(until - now(), signal);
    try {
      const document = { session: this.name, ...this.about(""), calls: [one.event] };
      const response = await this.guard.post("/guard", document, this.guard.budgetSeconds, signal, this.program);
      throwForStatus(this.guard.url, response);
      return verdictsOf([one], response)[0] as Verdict;
    } catch (error) {
      signal?.throwIfAborted();
      const reason = this.guard.noteFailure(error);
      if (this.guard.failsClosed(verdict.tool)) return verdict;
      // The agent has waited; nothing else speaks against the call.
      return new Verdict({ tool: verdict.tool, callId: verdict.callId, decision: "allow", source: "client", reason });
    }
  }

  /** Decide without the server, and keep the calls until it is back. */
  private decideAll(checked: readonly Checked[], reason: string): Verdict[] {
    const verdicts = checked.map((one) => {
      const verdict = this.decide(one, reason);
      this.keep(one, verdict.mayRun ? undefined : verdict.message);
      return verdict;
    });
    this.remember(checked, verdicts);
    this.guard.noteUnguarded(checked.length);
    return verdicts;
  }

  private decide(one: Checked, reason: string): Verdict {
    const { tool, callId } = one.call;
    const number = this.counter.count(one.key);
    const verdict = new Verdict({ tool, callId, decision: "allow", source: "client", reason });
    if (this.stopped) return verdict.with({ decision: "stop", message: this.stopped });
    if (number >= LIMIT) {
      const text = `This is call ${number} of \`${tool}\` with the same arguments and no new result. It did not run. `;
      if (number >= STOP_AFTER) return verdict.with({ decision: "stop", message: `${text}The run ends here.` });
      const advice = "Change the arguments, use another tool, or say what is missing.";
      return verdict.with({ decision: "block", message: text + advice });
    }
    if (this.guard.failsClosed(tool)) {
      const text = `\`${tool}\` did not run: it needs a verdict from LoopGuard, which is unreachable. Try again later.`;
      return verdict.with({ decision: "block", message: text });
    }
    return verdict;
  }

  // Bookkeeping

  private prepared(given: Call, round: string, at: string): Checked {
    const tool = wire.name(given.tool, "tool") || "unnamed";
    const sent = wire.sentArguments(given.arguments);
    const call = { ...given, callId: given.callId || wire.newId("call_") };
    const event: Checked["event"] = {
      id: wire.newId("evt_"),
      tool,
      arguments: sent,
      occurred_at: at,
      call_id: this.uniqueId(call.callId),
    };
    if (call.cwd) event["cwd"] = wire.name(call.cwd, "cwd");
    if (round) event["round"] = wire.name(round);
    return { call, event, key: wire.key(tool, sent, call.cwd) };
  }

  /** Return the id to send. Model servers use ids again; an id whose call has ended gets a number. */
  private uniqueId(callId: string): string {
    let sent = wire.name(callId);
    if (sent.startsWith("seq-")) sent = `client-${sent}`.slice(0, wire.MAX_NAME);
    const open = this.open.get(callId);
    if (open) return open.event.call_id;
    const used = this.usedIds.get(sent) ?? 0;
    this.usedIds.delete(sent);
    this.usedIds.set(sent, used + 1);
    forgetOldest(this.usedIds, MAX_OPEN_CALLS);
    return used ? `${sent.slice(0, wire.MAX_NAME - 8)}~${used + 1}` : sent;
  }

  private remember(checked: readonly Checked[], verdicts: readonly Verdict[]): void {
    for (const [index, one] of checked.entries()) {
      if (verdicts[index]?.mayRun) this.open.set(one.call.callId, one);
    }
    forgetOldest(this.open, MAX_OPEN_CALLS);
  }

  /** Report calls whose agent gave up while it waited: they may be stored and never run. */
  private abandon(checked: readonly Checked[]): void {
    for (const one of checked) this.keep(one, "Cancelled before it ran.");
    this.guard.wake();
  }

  /** Keep a call for later, with the reason if it did not run. */
  private keep(one: Checked, refusal: string | undefined): void {
    this.outbox.push({ ...one.event, type: "call", session: this.name, ...this.about("") });
    if (refusal !== undefined) {
      this.outbox.push(this.event("result", { call_id: one.event.call_id, content: refusal, is_error: true }));
    }
  }

  private report(type: string, values: Record<string, unknown>): void {
    this.outbox.push(this.event(type, values));
    this.guard.wake();
  }

  private event(type: string, values: Record<string, unknown>): Event {
    return { type, id: wire.newId("evt_"), session: this.name, occurred_at: new Date().toISOString(), ...values };
  }

  private about(round: string): Record<string, unknown> {
    const about = {
      round: wire.name(round),
      agent: wire.name(this.agent, "agent"),
      backend: wire.name(this.backend, "backend"),
      model: wire.name(this.model, "model"),
      parent_session: wire.name(this.parent),
    };
    const named = Object.fromEntries(Object.entries(about).filter(([, value]) => value));
    return { ...named, ...wire.labels(this.tags, this.metadata) };
  }
}

function verdictsOf(checked: readonly Checked[], response: Response): Verdict[] {
  const given = response.document["verdicts"];
  if (!Array.isArray(given) || given.length !== checked.length) {
    throw new NoAnswer("The server gave no verdict for each call.");
  }
  return checked.map((one, index) => verdictOf(one.call, given[index]));
}

function verdictOf(call: Checked["call"], data: unknown): Verdict {
  if (!wire.isObject(data) || !isDecision(data["decision"])) {
    throw new NoAnswer("The server gave a verdict that this client does not know.");
  }
  const { decision, ending, retry_after_seconds: seconds } = data;
  const isEnding = decision === "block" && ["finish", "reuse", "delay"].includes(String(ending));
  return new Verdict({
    tool: call.tool,
    callId: call.callId,
    decision,
    message: String(data["message"] ?? ""),
    incident: String(data["incident"] ?? ""),
    finding: wire.isObject(data["finding"]) ? data["finding"] : {},
    approval: wire.isObject(data["approval"]) ? data["approval"] : {},
    ending: isEnding ? (ending as Ending) : "",
    retryAfterSeconds: typeof seconds === "number" ? seconds : 0,
  });
}

function isDecision(value: unknown): value is Decision {
  return typeof value === "string" && Object.hasOwn(STRENGTH, value);
}

async function pause(seconds: number, signal: AbortSignal | undefined): Promise<void> {
  if (seconds <= 0) return signal?.throwIfAborted();
  await sleep(seconds * 1000, undefined, signal ? { signal } : {}).catch(() => signal?.throwIfAborted());
}

function left(deadline: number): number {
  const seconds = deadline - now();
  if (seconds <= 0) throw new NoAnswer("The call timed out before the server answered.");
  return seconds;
}
