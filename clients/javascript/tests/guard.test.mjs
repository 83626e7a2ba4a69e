// What only this client has: functions, blocks, model responses, signals, and the life of a process.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { CallBlocked, Guard, LoopGuardError, RunStopped, VERSION } from "loopguard-client";

import { Search, brokenServers, calls, eventually, newName, patient, server, session as stored } from "./support.mjs";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const RUN = { cwd: ROOT, encoding: "utf8", timeout: 60_000 };

test("a guarded function runs three times, and the eighth call ends the run", async () => {
  const guard = patient();
  const tool = new Search();
  const search = guard.tool(tool.run, { name: "search" });
  const name = newName();
  const answers = await guard.session(name).run(async () => {
    const said = [];
    for (let number = 0; number < 10; number += 1) said.push(await search({ q: "x" }).catch((error) => error));
    return said;
  });
  assert.equal(tool.runs, 3);
  assert.deepEqual(answers.slice(0, 2), ["0 hits", "0 hits"]);
  assert.match(answers[2], /.\n\n0 hits$/s);
  assert.ok(answers.slice(3, 7).every((error) => error instanceof CallBlocked && error instanceof LoopGuardError));
  assert.ok(answers.slice(7).every((error) => error instanceof RunStopped && error.message === error.verdict.message));
  assert.ok(await guard.close(20));
  assert.equal((await calls(name))[0].arguments, '{"q":"x"}');
});

test("the message of a blocked call, and an error of the tool, are results", async () => {
  const guard = patient();
  const name = newName();
  const look = guard.tool(async (_first, _second) => "0 hits", { name: "look", messageAsResult: true });
  const fail = guard.tool(
    () => {
      throw new RangeError("too far");
    },
    { name: "fail" },
  );
  await guard.session(name).run(async () => {
    const answers = [];
    for (let number = 0; number < 4; number += 1) answers.push(await look("a", { b: 1 }));
    assert.match(answers[3], /look/);
    await assert.rejects(fail(), RangeError);
  });
  assert.ok(await guard.close(20));
  const found = await calls(name);
  assert.equal(found[0].arguments, '{"args":["a",{"b":1}]}');
  assert.deepEqual([found.at(-1).result.is_error, found.at(-1).result.content], [true, "RangeError: too far"]);
  assert.throws(
    () =>
      guard.tool(function* () {
        yield 1;
      }),
    /generator/,
  );
});

test("sessions follow the asynchronous calls of their block, and a new one ends with it", async () => {
  const guard = patient();
  const names = await Promise.all(
    [1, 2].map(() =>
      guard.session().run(async () => {
        await new Promise((resolve) => setTimeout(resolve, 5));
        await guard.currentSession().call("search", { q: "x" }, () => "0 hits");
        return guard.currentSession().name;
      }),
    ),
  );
  assert.notEqual(names[0], names[1]);
  assert.ok(await guard.close(20));
  for (const name of names) {
    await eventually(async () => (await stored(name)).outcome === "completed");
    assert.equal((await calls(name)).length, 1);
  }
});

const SHAPES = {
  chat: (ids) => ({
    choices: [
      {
        message: {
          role: "assistant",
          tool_calls: ids.map((id) => ({ id, type: "function", function: { name: "search", arguments: '{"q":"x"}' } })),
        },
      },
    ],
  }),
  responses: (ids) => ({
    output: [
      { type: "reasoning", id: "rs_1" },
      ...ids.map((id) => ({ type: "function_call", call_id: id, name: "search", arguments: '{"q":"x"}' })),
    ],
  }),
  anthropic: (ids) => ({
    role: "assistant",
    content: [
      { type: "text", text: "Hm." },
      ...ids.map((id) => ({ type: "tool_use", id, name: "search", input: { q: "x" } })),
    ],
  }),
};
const TEXT = {
  chat: (answers) => answers.map((one) => one.content),
  responses: (answers) => answers.map((one) => one.output),
  anthropic: ([message]) => message.content.map((one) => one.content),
};

for (const [shape, response] of Object.entries(SHAPES)) {
  test(`of the calls of model responses (${shape}), three of 40 run`, async () => {
    const guard = patient();
    const session = guard.session(newName());
    const tool = new Search();
    let requests = 0;
    for (; requests < 40; requests += 1) {
      const asked = await session.calls(response([`c${requests}`]));
      const answers = await asked.answers((_name, args) => tool.run(args));
      assert.equal(TEXT[shape](answers).length, 1);
      if (asked.stopped) break;
    }
    assert.equal(tool.runs, 3);
    assert.equal(requests, 7);
    assert.ok(await guard.close(20));
  });

  test(`six identical calls of one response (${shape}) take one request, and three run`, async () => {
    const guard = patient();
    const tool = new Search();
    const asked = await guard.session(newName()).calls(response([1, 2, 3, 4, 5, 6].map((id) => `c${id}`)));
    const texts = TEXT[shape](await asked.answers((_name, args) => tool.run(args)));
    assert.equal(tool.runs, 3);
    assert.deepEqual(texts.slice(0, 2), ["0 hits", "0 hits"]);
    assert.match(texts[3], /'search' was called/);
    assert.ok(await guard.close(20));
  });

  test(`a response (${shape}) without calls asks nothing`, async () => {
    const guard = new Guard({ url: "http://127.0.0.1:9", key: "lg_x" });
    assert.deepEqual(await (await guard.calls(response([]))).answers(() => "0 hits"), []);
    assert.equal(guard.degraded, false);
  });
}

test("a loop is stopped without a server, with a silent one and with a wrong key", async (t) => {
  for (const [what, options] of Object.entries(await brokenServers(t))) {
    const guard = patient(options);
    const session = guard.session(newName());
    const tool = new Search();
    let requests = 0;
    for (; requests < 40; requests += 1) {
      const asked = await session.calls(SHAPES.chat([`c${requests}`]));
      await asked.answers((_name, args) => tool.run(args));
      if (asked.stopped) break;
    }
    assert.deepEqual([tool.runs, requests, guard.degraded], [3, 7, true], what);
    for (let number = 0; number < 12; number += 1) {
      assert.ok((await session.check("search", { q: `${number}` })).mayRun, what);
    }
    await guard.close(0);
  }
});

test("a check that is given up leaves no open call", async (t) => {
  const { hanging } = await brokenServers(t);
  const guard = patient({ url: hanging.url, budgetSeconds: 20 });
  const session = guard.session(newName());
  const signal = AbortSignal.timeout(50);
  await assert.rejects(session.check("search", { q: "x" }, { signal }), { name: "TimeoutError" });
  assert.deepEqual(
    session.outbox.map((event) => event.content ?? event.tool),
    ["search", "Cancelled before it ran."],
  );
  assert.equal(guard.degraded, false);
  await guard.close(0);
});

test("values that JSON does not have are sent all the same", async () => {
  const guard = patient();
  const name = newName();
  const session = guard.session(name);
  const map = new Map([["a", new Set([1])]]);
  const circle = { when: new Date(0), big: 10n ** 20n, none: undefined, bytes: new Uint8Array(3), map };
  circle.self = circle;
  const verdict = await session.check("search", circle);
  assert.equal(verdict.source, "server");
  session.result(verdict, {
    get broken() {
      throw new Error("not now");
    },
  });
  assert.ok(await guard.close(20));
  assert.equal(guard.status.droppedEvents, 0);
  const [call] = await calls(name);
  assert.deepEqual(JSON.parse(call.arguments), {
    big: "100000000000000000000",
    bytes: JSON.parse(call.arguments).bytes,
    map: { a: [1] },
    self: "[circular]",
    when: "1970-01-01T00:00:00.000Z",
  });
  assert.match(JSON.parse(call.arguments).bytes, /^\[3 bytes, sha256 [0-9a-f]{32}\]$/);
  // Half a million values behind one result are read only in part.
  const wide = Object.fromEntries(Array.from({ length: 10 }, (_, index) => [`k${index}`, null]));
  let deep = wide;
  for (let level = 0; level < 20; level += 1) deep = Object.fromEntries(Object.keys(wide).map((key) => [key, deep]));
  const started = performance.now();
  guard.session(newName()).result("c1", deep);
  assert.ok(performance.now() - started < 5_000);
});

test("an address or a key that is wrong is an error at the start", () => {
  for (const [options, wrong] of [
    [{ url: "ftp://x", key: "lg_x" }, /HTTP address/],
    [{ url: "http://x:0", key: "lg_x" }, /HTTP address/],
    [{ url: "http://x", key: "a b" }, /key/],
    [{ url: "http://x", key: "lg_x", budgetSeconds: 0 }, /budgetSeconds/],
    [{ url: "http://x", key: "lg_x", failClosed: "delete_*" }, /list/],
  ]) {
    assert.throws(
      () => new Guard(options),
      (error) => error instanceof TypeError && wrong.test(error.message),
    );
  }
  const script = 'try { new (require("loopguard-client").Guard)() } catch (error) { console.log(error.message) }';
  const env = { PATH: process.env.PATH, HOME: "/nonexistent" };
  const said = execFileSync(process.execPath, ["-e", script], { ...RUN, env });
  assert.match(said, /^Missing the address of LoopGuard and an API key\./);
});

test("patterns name the tools that need a verdict", () => {
  const failClosed = ["delete_*", "p?y", "[ab]c", "[!x]z", "a.b"];
  const guard = new Guard({ url: "http://127.0.0.1:9", key: "lg_x", failClosed });
  const closed = ["delete_", "delete_all\nof it", "pay", "ac", "bc", "yz", "a.b"];
  const others = ["undelete_x", "paay", "cc", "xz", "aab"];
  assert.deepEqual(
    [...closed, ...others].filter((tool) => guard.failsClosed(tool)),
    closed,
  );
});

test("a process that has nothing left to do sends its last result, and a guard does not keep it alive", async () => {
  const name = newName();
  const script = `
    const { Guard } = require("loopguard-client");
    const guard = new Guard({ url: process.argv[1], key: process.argv[2], budgetSeconds: 20 });
    const session = guard.session(process.argv[3]);
    session.check("search", { q: "x" }).then((verdict) => { session.result(verdict, "0 hits"); session.end(); });`;
  const ended = spawnSync(process.execPath, ["-e", script, server.url, server.key, name], RUN);
  assert.deepEqual([ended.status, ended.stderr], [0, ""]);
  await eventually(async () => (await stored(name)).outcome === "completed");
  assert.equal((await calls(name))[0].result.content, "0 hits");
});

test("both module systems share one guard, and the version is that of the package", async () => {
  const required = createRequire(import.meta.url)("loopguard-client");
  const { default: _, ["module.exports"]: __, __esModule, ...imported } = await import("loopguard-client");
  assert.deepEqual(imported, { ...required });
  assert.equal(VERSION, JSON.parse(readFileSync(`${ROOT}/package.json`)).version);
});

test("the package is small, needs nothing, and has what it names", () => {
  const packed = JSON.parse(execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], RUN));
  const [found] = Array.isArray(packed) ? packed : Object.values(packed);
  assert.ok(found.size <= 40 * 1024, `${found.size} bytes`);
  const { dependencies, exports: names } = JSON.parse(readFileSync(`${ROOT}/package.json`));
  assert.equal(dependencies, undefined);
  for (const one of [names["."].import, names["."].require]) assert.ok(statSync(`${ROOT}/${one}`).isFile());
});

test("sessions have the tags and metadata of guard and session", async () => {
  process.env.LOOPGUARD_TAGS = "run-1, run-2";
  const guard = patient({ tags: ["team-a"], metadata: { env: "prod" } });
  delete process.env.LOOPGUARD_TAGS;
  const name = newName();
  const own = guard.session(name, { tags: ["nightly", "x".repeat(80)], metadata: { customer: "acme" } });
  await own.check("search", { q: "1" });
  await guard.session(name, { tags: ["late"] }).check("search", { q: "2" });
  const found = await stored(name);
  const [first, second, third, fourth, long, last] = found.tags;
  assert.deepEqual([first, second, third, fourth], ["team-a", "run-1", "run-2", "nightly"]);
  assert.deepEqual([long.length, last], [64, "late"]);
  assert.deepEqual(found.metadata, { env: "prod", customer: "acme" });
  assert.ok(await guard.close(20));
});

test("the first examples of the page run as they are pasted, but for address and key", async () => {
  const page = readFileSync(join(ROOT, "../../docs/javascript.md"), "utf8").split("\n## Loops with")[0];
  const examples = [...page.matchAll(/^```js\n(.*?)^```/gms)].map(([, example]) => example);
  assert.equal(examples.length, 2);
  const name = newName();
  const pasted = examples
    .join("")
    .replaceAll("http://127.0.0.1:8300", server.url)
    .replaceAll("lg_…", server.key)
    .replaceAll("chat-42", name)
    .replace("failClosed:", "budgetSeconds: 20, failClosed:"); // the machine may be busy
  const run = spawnSync(process.execPath, ["--input-type=module", "--eval", `${pasted}\nconsole.log(answer);`], RUN);
  assert.equal(run.stdout, "0 results\n0 results\n", run.stderr);
  assert.deepEqual((await calls(name)).map(({ decision }) => decision), ["allow", "allow", "allow"]);
});
