// What every adapter does with a model that repeats itself, and with a server that is away.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Search, brokenServers, calls, newName, patient } from "../tests/support.mjs";

export const IDENTICAL = Array.from({ length: 40 }, () => ["x"]);
const SIX = [Array(6).fill("x"), ...IDENTICAL];
const DIFFERENT = Array.from({ length: 12 }, (_, number) => [`query ${number} of ${newName()}`]);

/**
 * Test one way to run an agent.
 *
 * `play` runs it until it ends. It is given a guard, a tool, the name of a session, and the script of the model, which
 * has `next()`: the calls of its next answer, each with an id and a query, or none at the end.
 */
export function testAdapter(what, play, { requests = 8, parallel = 3, isCounted = true } = {}) {
  async function played(guard, steps, name = newName()) {
    const tool = new Search();
    const script = new Script(steps);
    await play({ guard, tool, name, script });
    return { tool, script, name };
  }

  test(`${what}: of 40 identical calls, three run, and the run ends`, async () => {
    const guard = patient();
    const { tool, script, name } = await played(guard, IDENTICAL);
    assert.equal(tool.runs, 3);
    assert.equal(script.requests, requests);
    assert.ok(await guard.close(20));
    assert.equal(guard.status.unguardedCalls, 0);
    if (!isCounted) return;
    const stored = await calls(name);
    assert.deepEqual(stored.map((call) => call.decision).filter((one) => one === "block").length, 4);
    assert.deepEqual(
      stored.slice(0, 3).map((call) => call.result.content),
      Array(3).fill("0 hits"),
    );
  });

  test(`${what}: of six identical calls in one response, three run`, async () => {
    const guard = patient();
    const { tool, script } = await played(guard, SIX);
    assert.equal(tool.runs, parallel);
    assert.ok(script.requests <= 4, `${script.requests} requests`);
    assert.ok(await guard.close(20));
  });

  test(`${what}: different calls run`, async () => {
    const guard = patient();
    const { tool, script } = await played(guard, DIFFERENT);
    assert.deepEqual([tool.runs, script.requests], [DIFFERENT.length, DIFFERENT.length + 1]);
    assert.ok(await guard.close(20));
  });

  test(`${what}: without a verdict, the client counts`, async (t) => {
    for (const [trouble, options] of Object.entries(await brokenServers(t))) {
      const guard = patient(options);
      const { tool, script } = await played(guard, IDENTICAL);
      assert.deepEqual([trouble, tool.runs, script.requests], [trouble, 3, requests]);
      assert.ok(guard.degraded, trouble);
      const other = await played(guard, DIFFERENT);
      assert.deepEqual([trouble, other.tool.runs], [trouble, DIFFERENT.length]);
      await guard.close(0);
    }
  });
}

/**
 * Test that the tools of a sub-agent are guarded in a session of its own, and that its caller goes on.
 *
 * `play` runs an agent whose model follows `boss`; its one tool runs a sub-agent, whose model follows `worker`. It returns
 * the name of the sub-agent's session, if that is not `name/worker`.
 */
export function testSubAgent(what, play) {
  test(`${what}: of 40 identical calls of a sub-agent, three run, and its caller goes on`, async () => {
    const guard = patient();
    const tool = new Search();
    const name = newName();
    const boss = new Script([["x"]]);
    const worker = new Script(IDENTICAL);
    const inner = (await play({ guard, tool, name, boss, worker })) ?? `${name}/worker`;
    assert.deepEqual([tool.runs, worker.requests], [3, 8]);
    assert.ok(boss.requests >= 2, `${boss.requests} requests`); // more, where a sub-agent runs beside its caller
    assert.ok(await guard.close(20));
    assert.equal((await calls(name)).length, 1);
    assert.equal((await calls(inner)).length, 8);
  });
}

/** The answers of a model, and how many it was asked for. */
export class Script {
  requests = 0;
  constructor(steps) {
    this.steps = steps;
  }
  next() {
    const queries = this.steps[this.requests] ?? [];
    this.requests += 1;
    return queries.map((q, at) => ({ id: `call_${this.requests}_${at}`, q, json: JSON.stringify({ q }) }));
  }
}
