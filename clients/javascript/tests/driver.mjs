// Does what each line of its input says with a guard, and answers with one line: the shared cases run through it.
import { createInterface } from "node:readline";

import { Guard } from "loopguard-client";

let guard;
let session;
const said = [];

// The names of the cases are those of the API.
const renamed = (fields, rename) =>
  Object.fromEntries(Object.entries(fields).map(([name, value]) => [rename(name), value]));
const snake = (fields) => renamed(fields, (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
const camel = (fields) => renamed(fields, (name) => name.replace(/_[a-z]/g, (found) => found[1].toUpperCase()));
const answer = (verdict) => snake({ ...verdict, mayRun: verdict.mayRun, isAnswer: verdict.isAnswer });

const operations = {
  guard: ({ session: name, about, ...options }) => {
    guard = new Guard({ ...camel(options), log: (sentence) => said.push(sentence) });
    session = guard.session(name, about);
  },
  set: (values) => void Object.assign(guard, camel(values)),
  check: async ({ calls, round }) => (await session.checkCalls(calls.map(camel), { round })).map(answer),
  together: async ({ calls }) =>
    (await Promise.all(calls.map((call) => session.check(call.tool, call.arguments, camel(call))))).map(answer),
  result: ({ call_id, content, is_error }) => session.result(call_id, content, { isError: is_error }),
  heartbeat: ({ call_id }) => session.heartbeat(call_id),
  user_message: ({ text }) => session.userMessage(text),
  usage: ({ round, ...usage }) => session.usage(camel(usage), { round }),
  end: ({ outcome }) => session.end(outcome),
  flush: ({ seconds }) => guard.flush(seconds),
  close: ({ seconds }) => guard.close(seconds),
  status: () => snake(guard.status),
  log: () => said,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...values } = JSON.parse(line);
  const value = await Promise.resolve(operations[op](values)).catch((error) => ({ error: String(error?.stack) }));
  process.stdout.write(`${JSON.stringify(value ?? null)}\n`);
}
