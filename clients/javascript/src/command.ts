#!/usr/bin/env node
/** The command `loopguard-client`: what the Python client's `loopguard hooks` does, for machines without Python. */

import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";

import { curlFile, folder, stored } from "./credentials";
import { check, hostOf } from "./hooks/check";
import { data, type Host, HOSTS, hookFile } from "./hooks/hosts";
import { type Change, installation, isNeeded, keep, make, Problem, removal, writePrivate } from "./hooks/settings";

const USAGE = `usage: loopguard-client hooks install|check|uninstall HOST [options]

  install     add LoopGuard's hooks to the settings of a coding agent
  check       run an installed hook and report what keeps it from working
  uninstall   remove LoopGuard's hooks and nothing else

HOST: ${Object.keys(HOSTS).join(", ")}

  --project      the settings of the project in this folder; those of the account by default
  --dry-run      show the change without applying it
  --url URL      address of the server; LOOPGUARD_URL or the stored one by default
  --fail-closed  calls do not run while the server is unreachable; by default they do

The key is read from LOOPGUARD_KEY, from what is stored, or from standard input.`;
const KEY_LINE = /^header = "Authorization: Bearer (?:lg_[\w-]+)"$/m;
const ACTIONS = { install, check: checkHooks, uninstall };

interface Options {
  project: string;
  isDryRun: boolean;
  isFailClosed: boolean;
  url: string;
}

async function main(): Promise<number> {
  let words;
  try {
    words = parseArgs({
      allowPositionals: true,
      options: {
        project: { type: "boolean" },
        "dry-run": { type: "boolean" },
        "fail-closed": { type: "boolean" },
        url: { type: "string" },
        help: { type: "boolean", short: "h" },
      },
    });
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${USAGE}`);
    return 2;
  }
  const [, name = "", host = ""] = words.positionals;
  if (words.values.help) {
    console.log(USAGE);
    return 0;
  }
  const allowed = [{ hooks: 1 }, ACTIONS, HOSTS];
  const wrong = words.positionals.find((word, at) => !allowed[at] || !Object.hasOwn(allowed[at], word));
  if (wrong || !host) {
    console.error(`${wrong ? `"${wrong}" is not part of this command.\n\n` : ""}${USAGE}`);
    return 2;
  }
  const { values } = words;
  return ACTIONS[name as keyof typeof ACTIONS](hostOf(host), {
    project: values.project ? process.cwd() : "",
    isDryRun: values["dry-run"] ?? false,
    isFailClosed: values["fail-closed"] ?? false,
    url: values.url ?? "",
  });
}

async function install(host: Host, options: Options): Promise<number> {
  const { url, key } = credentials(options.url);
  const isNew = url !== stored().url || key !== stored().key;
  const change = installation(host, url, options.isFailClosed, options.project);
  if (options.isDryRun) return show(change);
  if (isNew) {
    await tryKey(url, key);
    console.log(`Key stored in ${store(url, key)}.`);
  }
  if (options.project) console.log("The hooks name files of this account: keep the settings out of the repository.");
  if (host.form === "settings") writePrivate(hookFile(), data("hook.sh"));
  if (isNeeded(change)) keep(change);
  makeAndTell(
    change,
    `LoopGuard's hooks are already installed in ${change.file}.`,
    `Hooks installed in ${change.file}.`,
  );
  const first = host.next_step ?? `Restart ${host.title} if it is running.`;
  console.log(`${first} Then check the hooks: npx loopguard-client hooks check ${host.name}`);
  return 0;
}

function uninstall(host: Host, options: Options): number {
  const change = removal(host, options.project);
  if (options.isDryRun) return show(change);
  makeAndTell(change, `${change.file} has no LoopGuard hooks.`, `Hooks removed from ${change.file}.`);
  return 0;
}

function checkHooks(host: Host, options: Options): number {
  let isOk = true;
  for (const finding of check(host, options.project)) {
    console.log(`${finding.isOk ? "ok      " : "PROBLEM "} ${finding.text}`);
    isOk &&= finding.isOk;
  }
  console.log(isOk ? "Nothing keeps the hooks from working." : "The hooks do not work correctly.");
  return isOk ? 0 : 1;
}

function makeAndTell(change: Change, ifDone: string, ifMade: string): void {
  if (!isNeeded(change)) {
    console.log(ifDone);
    return;
  }
  const backup = make(change);
  console.log(ifMade);
  if (backup) console.log(`Backup of the original file: ${backup}`);
}

function show({ file, before, after }: Change): number {
  if (before === after) {
    console.log(`${file} would not change.`);
    return 0;
  }
  const lines = (text: string | undefined): string[] => (text ? text.replace(/\n$/, "").split("\n") : []);
  const [old, now] = [lines(before), lines(after)];
  let start = 0;
  while (start < Math.min(old.length, now.length) && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < Math.min(old.length, now.length) - start && old.at(-1 - end) === now.at(-1 - end)) end += 1;
  console.log(`--- ${file}\n+++ ${file}\n@@ from line ${start + 1} @@`);
  for (const line of old.slice(start, old.length - end)) console.log(`-${line}`);
  for (const line of now.slice(start, now.length - end)) console.log(`+${line}`);
  return 0;
}

function credentials(given: string): { url: string; key: string } {
  const kept = stored();
  const address = given || process.env["LOOPGUARD_URL"] || kept.url;
  if (!address) {
    throw new Problem("The address of LoopGuard is not known: add --url, such as --url http://127.0.0.1:8300.");
  }
  const url = (address.includes("://") ? address : `http://${address}`).replace(/(\/api\/v1)?\/*$/, "");
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new Problem(`The address of LoopGuard must be an HTTP address, not "${address}".`);
  }
  let key = process.env["LOOPGUARD_KEY"] || (kept.url === url ? kept.key : "");
  if (!key) {
    if (process.stdin.isTTY) {
      throw new Problem("The key is not known: set LOOPGUARD_KEY, or write it to standard input.");
    }
    key = readFileSync(0, "utf8").trim();
  }
  if (!/^lg_[\w-]+$/.test(key)) throw new Problem("The API key does not have the form lg_….");
  return { url, key };
}

/** Check with the server that it accepts a key before storing it. An empty request is not a call. */
async function tryKey(url: string, key: string): Promise<void> {
  let response;
  try {
    const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
    const signal = AbortSignal.timeout(5_000);
    response = await fetch(`${url}/api/v1/guard`, { method: "POST", headers, body: "{}", signal });
  } catch {
    console.error(`Warning: ${url} does not answer. The key is stored without being checked.`);
    return;
  }
  if (response.status === 401 || response.status === 403) {
    throw new Problem(`${url} does not accept this key. Nothing was stored.`);
  }
  if (response.status !== 422) {
    throw new Problem(`${url} answered ${response.status}, which is not a LoopGuard response. Nothing was stored.`);
  }
}

/** Store address and key; headers that somebody has added, such as tags, stay. */
function store(url: string, key: string): string {
  mkdirSync(folder(), { recursive: true, mode: 0o700 });
  writePrivate(join(folder(), "client.json"), `{"url": ${JSON.stringify(url)}}\n`);
  const line = `header = "Authorization: Bearer ${key}"`;
  let text = "";
  try {
    text = readFileSync(curlFile(), "utf8");
  } catch {
    // there is none yet
  }
  const usual = ["# For curl -K. Keep it private.", line, 'header = "Content-Type: application/json"', ""].join("\n");
  writePrivate(curlFile(), KEY_LINE.test(text) ? text.replace(KEY_LINE, line) : usual);
  return curlFile();
}

main().then(
  (status) => (process.exitCode = status),
  (error: unknown) => {
    const isKnown = error instanceof Problem || error instanceof TypeError || (error as { code?: string }).code;
    console.error(isKnown ? (error as Error).message : error);
    process.exitCode = 1;
  },
);
