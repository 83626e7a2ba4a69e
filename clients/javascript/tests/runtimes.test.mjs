// The client in Bun and Deno, where they are on the PATH.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { server } from "./support.mjs";

const PROGRAM = `
import { CallBlocked, Guard, RunStopped } from "loopguard-client";
const guard = new Guard({ budgetSeconds: 20 });
let ran = 0;
const search = guard.tool(async () => { ran += 1; return "0 results"; }, { name: "search" });
await guard.session().run(async () => {
  for (let number = 0; number < 40; number += 1) {
    try {
      await search({ q: "x" });
    } catch (error) {
      if (error instanceof RunStopped) break;
      if (!(error instanceof CallBlocked)) throw error;
    }
  }
});
console.log(JSON.stringify({ ran, isClosed: await guard.close(20) }));
`;

for (const [name, words] of Object.entries({ bun: ["run", "-"], deno: ["run", "-A", "-"] })) {
  const { status } = spawnSync(name, ["--version"]);
  test(`three of 40 identical calls run in ${name}`, { skip: status !== 0 && `${name} is not on the PATH` }, () => {
    for (const [url, isClosed] of [[server.url, true], ["http://127.0.0.1:9", false]]) {
      const done = spawnSync(name, words, {
        cwd: new URL("..", import.meta.url).pathname,
        encoding: "utf8",
        env: { ...process.env, LOOPGUARD_URL: url, LOOPGUARD_KEY: server.key },
        input: PROGRAM,
        timeout: 90_000,
      });
      assert.deepEqual(JSON.parse(done.stdout.trim().split("\n").at(-1)), { ran: 3, isClosed }, done.stderr);
    }
  });
}
