/** Finds out whether the hooks of a coding agent work, by running one as the agent does. */

import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { curlFile, folder, stored } from "../credentials";
import { data, type Host, hookFile, HOSTS, installedCommands, settingsFile } from "./hosts";
import { isObject, parsed } from "./jsonc";
import { installation, isNeeded, parsedSettings, Problem, read } from "./settings";

const PROGRAM_MILLISECONDS = 30_000;

export interface Finding {
  isOk: boolean;
  text: string;
}

/**
 * Check the hooks of a host, from its settings to the server; stop when further checks are pointless. Sends one call to
 * the server, in a session named `loopguard-check-…`.
 */
export function* check(host: Host, project: string): Generator<Finding> {
  const { key, url } = stored();
  const isPrivate = key !== "" && (process.platform === "win32" || (statSync(curlFile()).mode & 0o077) === 0);
  yield !key
    ? no(`${curlFile()} has no key in the expected form: install the hooks again.`)
    : isPrivate
      ? yes(`${curlFile()} has a key, and only this account can read it.`)
      : no(`${curlFile()} can be read by other accounts: run \`chmod 600 ${curlFile()}\`.`);
  const { file, before } = read(host, project);
  const again = `run \`npx loopguard-client hooks install ${host.name}\`.`;
  if (host.form === "plugin") {
    const isCurrent = [true, false].some((isClosed) => !isNeeded(installation(host, url, isClosed, project)));
    yield isCurrent
      ? yes(`${file} is the plugin of this version for ${url}. ${host.title} alone can show that it loads it.`)
      : no(`${file} is not the plugin of this version for ${url || "a known server"}: ${again}`);
    return;
  }
  const commands = installedCommands(host, parsedSettings(host, file, before));
  const missing = [...host.before, ...host.other_hooks].filter((hook) => !commands.has(hook));
  yield missing.length > 0
    ? no(`${file} has no LoopGuard hook for ${missing.join(", ")}: ${again}`)
    : yes(`${file} has the ${commands.size} LoopGuard hooks.`);
  yield* disabled(host, project);
  const command = commands.get(host.before[0]!);
  if (command && key) yield* fire(host, command, again);
}

function* disabled(host: Host, project: string): Generator<Finding> {
  for (const file of new Set([settingsFile(host, ""), settingsFile(host, project || process.cwd())])) {
    let document;
    try {
      document = parsed(readFileSync(file, "utf8"));
    } catch {
      continue;
    }
    if (!isObject(document)) continue;
    const hooks = isObject(document["hooksConfig"]) ? document["hooksConfig"] : {};
    const isOff = Array.isArray(hooks["disabled"]) && hooks["disabled"].includes("loopguard");
    const reasons = {
      disableAllHooks: document["disableAllHooks"] === true,
      allowManagedHooksOnly: document["allowManagedHooksOnly"] === true,
      "hooksConfig.enabled": hooks["enabled"] === false,
      "hooksConfig.disabled": isOff,
    };
    for (const [name, isSet] of Object.entries(reasons)) {
      if (isSet) yield no(`\`${name}\` in ${file} keeps ${host.title} from running these hooks.`);
    }
  }
}

function* fire(host: Host, command: string, again: string): Generator<Finding> {
  const server = /https?:\/\/[^\s'"]+(?=\/api\/v1\/hooks\/)/.exec(command)?.[0] ?? "";
  let script = "";
  try {
    script = readFileSync(hookFile(), "utf8");
  } catch {
    // it is missing
  }
  if (script !== data("hook.sh")) {
    yield no(`${hookFile()} is not that of this version: ${again}`);
    return;
  }
  rmSync(join(folder(), "late"), { force: true }); // ask now, even if an answer was late a moment ago
  const session = `loopguard-check-${randomUUID().slice(0, 12)}`;
  const body = {
    session_id: session,
    hook_event_name: host.before[0]!,
    cwd: "/",
    tool_name: "loopguard_check",
    tool_input: { check: session },
    tool_use_id: `check-${session}`,
  };
  const { status, stdout } = spawnSync("/bin/sh", ["-c", command], {
    input: JSON.stringify(body),
    encoding: "utf8",
    cwd: tmpdir(),
    timeout: PROGRAM_MILLISECONDS,
  });
  let told = "no answer";
  let isAnswer = host.by_exit_code === true;
  try {
    const answer = JSON.parse(stdout) as Record<string, unknown>;
    told = typeof answer["systemMessage"] === "string" ? answer["systemMessage"] : told;
    isAnswer = Object.keys(answer).join() !== "systemMessage";
  } catch {
    // no answer of the server
  }
  yield status === 0 && isAnswer
    ? yes(`A call sent through the hook reached ${server}.`)
    : no(`A call sent through the hook got no answer: ${told}`);
}

const yes = (text: string): Finding => ({ isOk: true, text });
const no = (text: string): Finding => ({ isOk: false, text });

/** Return the host of a name. */
export function hostOf(name: string): Host {
  const found = Object.hasOwn(HOSTS, name) ? HOSTS[name] : undefined;
  if (!found) throw new Problem(`There is no host ${name}: choose one of ${Object.keys(HOSTS).join(", ")}.`);
  return found;
}
