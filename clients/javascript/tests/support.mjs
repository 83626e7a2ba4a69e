// What the tests share: a server, which `python3 manage.py test clients javascript` names in LOOPGUARD_TEST_SERVER.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import { Guard } from "loopguard-client";

export const server = JSON.parse(process.env.LOOPGUARD_TEST_SERVER);

export const newName = () => `s-${randomUUID().slice(0, 12)}`;

/** A guard that is patient, because the machine may be busy. */
export const patient = (options = {}) =>
  new Guard({ url: server.url, key: server.key, agent: "tester", budgetSeconds: 20, log: () => undefined, ...options });

async function get(path) {
  const headers = { Authorization: `Bearer ${server.key}` };
  const response = await fetch(`${server.url}/api/v1${path}`, { headers, signal: AbortSignal.timeout(10_000) });
  assert.equal(response.status, 200, path);
  return response.json();
}

export const session = (name) => get(`/sessions/${encodeURIComponent(name)}`);

/** The calls of a session, oldest first. */
export async function calls(name) {
  const { items } = await get(`/sessions/${encodeURIComponent(name)}/calls?limit=100`);
  return items.sort((one, other) => one.seq - other.seq);
}

/** Servers that give no verdict, by what is wrong with them: each is the options of a guard. */
export async function brokenServers(t) {
  const silent = createServer(() => undefined);
  await new Promise((resolve) => silent.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    silent.closeAllConnections();
    silent.close();
  });
  return {
    down: { url: "http://127.0.0.1:9", key: "lg_x", budgetSeconds: 0.25 },
    hanging: { url: `http://127.0.0.1:${silent.address().port}`, key: "lg_x", budgetSeconds: 0.1 },
    "wrong key": { key: `${server.key.slice(0, -4)}0000` },
  };
}

export async function eventually(check) {
  const deadline = Date.now() + 30_000;
  while (!(await check())) {
    assert.ok(Date.now() < deadline, "It did not happen.");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** The tool of a test: how often it really ran. */
export class Search {
  runs = 0;
  run = ({ q }) => {
    this.runs += 1;
    return q === "x" ? "0 hits" : `found ${q}`;
  };
}
