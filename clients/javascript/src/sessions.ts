/** Which session a call of a framework belongs to. */

import type { Guard } from "./guard.js";
import type { Session } from "./session.js";

/** Choice of the session, which all adapters take. */
export interface SessionChoice<C> {
  /** Name of the session, or a function that returns it for a call. By default, each run is a session of its own. */
  session?: string | ((call: C) => string);
  /** Name of the agent, if it is not that of the guard. */
  agent?: string;
}

const runs = new WeakMap<object, Map<Guard, string>>();

/**
 * Return the session of a call: that of the surrounding `session.run`, the chosen one, or that of its run, which an
 * object identifies that all calls of the run share.
 */
export function sessionOf<C>(guard: Guard, choice: SessionChoice<C>, call: C, run: unknown): Session {
  const given = typeof choice.session === "function" ? choice.session(call) : choice.session;
  const surrounding = guard.surroundingSession();
  if (!given && surrounding) return surrounding;
  const about = { agent: choice.agent };
  if (given || typeof run !== "object" || run === null) {
    return given ? guard.session(given, about) : guard.currentSession();
  }
  const names = runs.get(run) ?? new Map<Guard, string>();
  runs.set(run, names);
  const session = guard.session(names.get(guard), about);
  names.set(guard, session.name);
  return session;
}
