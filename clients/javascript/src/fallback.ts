/** Counts identical calls, so that the client can decide while the server is unreachable. */

/** Distinct calls that are counted; the oldest are forgotten. */
const MAX_CALLS = 1_000;
/** The call with this number does not run, as with the preset `standard` of the server. */
export const LIMIT = 4;
/** The identical call with this number ends the run. */
export const STOP_AFTER = 8;
/** After a longer pause, an identical call counts as the first one again, as with that preset. */
const MAX_AGE_SECONDS = 120;

interface Counted {
  number: number;
  lastResult: string;
  at: number;
}

/** Return seconds of a clock that is never set. */
export function now(): number {
  return performance.now() / 1000;
}

/** Counts identical calls that brought no new result. */
export class LocalCounter {
  private readonly calls = new Map<string, Counted>();

  /** Count a call and return its number among the identical ones, from 1. */
  count(key: string): number {
    const known = this.calls.get(key);
    const recent = known && now() - known.at <= MAX_AGE_SECONDS ? known : { number: 0, lastResult: "" };
    this.calls.delete(key);
    this.calls.set(key, { number: recent.number + 1, lastResult: recent.lastResult, at: now() });
    forgetOldest(this.calls, MAX_CALLS);
    return recent.number + 1;
  }

  /**
   * Count a call that the server has decided. A call that it allows beyond `LIMIT` is not a loop under its settings,
   * which are not known here: counting starts again.
   */
  observeVerdict(key: string, mayRun: boolean): void {
    if (this.count(key) >= LIMIT && mayRun) this.calls.delete(key);
  }

  /** Note the result of a call. A result that differs from the one before is progress: counting starts again. */
  observeResult(key: string, digest: string): void {
    const known = this.calls.get(key);
    if (!known) return;
    if (known.lastResult && known.lastResult !== digest) known.number = 1;
    known.lastResult = digest;
  }

  clear(): void {
    this.calls.clear();
  }
}

/** Remove the oldest entries beyond a number. */
export function forgetOldest<K>(entries: Map<K, unknown> | Set<K>, number: number): void {
  for (const key of entries.keys()) {
    if (entries.size <= number) break;
    entries.delete(key);
  }
}
