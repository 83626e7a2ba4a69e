/** Coding agents: where each keeps its hooks, and in which form. The facts are those of the Python client's command. */

import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";

import { curlFile, folder } from "../credentials";
import { isObject, type Json, type JsonObject } from "./jsonc";

export interface Host {
  name: string;
  title: string;
  form: "settings" | "plugin";
  home: { variable: string; folder: string };
  file: string;
  project_file: string;
  next_step?: string;
  script: string;
  beside?: Record<string, Json>;
  before: string[];
  other_hooks: string[];
  handler: JsonObject;
  nested?: boolean;
  matcher?: string;
  version?: number | string;
  is_own_file?: boolean;
  waits?: boolean;
  by_exit_code?: boolean;
}

/** What the build has taken from the Python client: its tables, and the texts of its scripts by their names. */
declare const TABLES: {
  hosts: Record<string, Host>;
  seconds: number;
  wait_seconds: number;
  texts: Record<string, string>;
};

/** Return a script of the Python client. */
export const data = (name: string): string => TABLES.texts[name]!;

const { hosts, seconds, wait_seconds: waitSeconds } = TABLES;
export const HOSTS: Record<string, Host> = hosts;
for (const [name, host] of Object.entries(HOSTS)) host.name = name;

export const hookFile = (): string => join(folder(), "hook");

/** Return the settings file of this account, or of the project in a folder. */
export function settingsFile(host: Host, project: string): string {
  if (project) return join(project, host.project_file);
  const given = process.env[host.home.variable] ?? "";
  if (host.home.variable && isAbsolute(given)) return join(given, host.file);
  const moved = process.env["XDG_CONFIG_HOME"] ?? "";
  const isMoved = isAbsolute(moved) && host.home.folder.startsWith(".config/");
  const home = isMoved ? join(moved, host.home.folder.slice(8)) : join(homedir(), host.home.folder);
  return join(home, host.file);
}

const path = (host: Host): string => `/api/v1/hooks/${host.name}`;

/** Return whether the text of a plugin file, or of a command, is LoopGuard's. */
export const isOurs = (host: Host, text: Json | undefined): boolean =>
  typeof text === "string" && text.includes(host.form === "plugin" ? `${path(host)}"` : path(host));

/** Return the file of a plugin. */
export function plugin(host: Host, url: string, isFailClosed: boolean): string {
  const values = {
    "@ADDRESS@": url + path(host),
    "@KEY_FILE@": curlFile(),
    "@LATE_FILE@": join(folder(), "late"),
    "@FAIL_CLOSED@": String(isFailClosed),
  };
  const text = ["plugin.js", host.script].map((name) => `${data(name).trim()}\n`).join("\n");
  return text.replace(/"(@[A-Z_]+@)"/g, (_, place: keyof typeof values) => JSON.stringify(values[place]));
}

function shellWord(text: string): string {
  if (process.platform === "win32") return `"${text.replaceAll("\\", "/")}"`;
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function command(host: Host, url: string, hook: string, isFailClosed: boolean): string {
  const isBefore = host.before.includes(hook);
  const isClosed = isBefore && isFailClosed;
  const words =
    (hook === "SessionEnd" ? " end" : "") +
    (isBefore && host.waits ? " wait" : "") +
    (host.by_exit_code ? " exit" : "");
  const file = shellWord(hookFile());
  const run = `sh ${file} ${shellWord(url + path(host))}${words}${isClosed ? " closed" : ""}`;
  if (process.platform === "win32") return run;
  return isClosed ? `${run} || exit 2` : `test ! -r ${file} || ${run}`;
}

function commandOf(handler: Json | undefined, template: JsonObject): Json | undefined {
  if (!isObject(handler)) return undefined;
  for (const [field, value] of Object.entries(template)) {
    if (value === "@COMMAND@") return handler[field];
    if (isObject(value)) return commandOf(handler[field], value);
  }
  return undefined;
}

const isOurHandler = (host: Host, handler: Json): boolean => isOurs(host, commandOf(handler, host.handler));

/** Return the field of a handler that names its hook; undefined where handlers are below the name of their hook. */
export const triggerField = (host: Host): string | undefined =>
  Object.keys(host.handler).find((field) => host.handler[field] === "@HOOK@");

function byHook(host: Host, hooks: Json | undefined): JsonObject {
  if (!Array.isArray(hooks)) return isObject(hooks) ? { ...hooks } : {};
  const found: Record<string, Json[]> = {};
  for (const handler of hooks) (found[String((handler as JsonObject)[triggerField(host)!])] ??= []).push(handler);
  return found;
}

const asWritten = (host: Host, hooks: JsonObject): Json => (triggerField(host) ? Object.values(hooks).flat() : hooks);

const filled = (template: JsonObject, hook: string, values: JsonObject): JsonObject =>
  Object.fromEntries(
    Object.entries(template).map(([field, value]) => [
      field,
      isObject(value)
        ? filled(value, hook, values)
        : (values[String(value)] ?? String(value).replace("@HOOK@", hook)),
    ]),
  );

/** Return settings with LoopGuard's hooks added and all others unchanged. */
export function withHooks(host: Host, document: JsonObject, url: string, isFailClosed: boolean): JsonObject {
  const changed = withoutHooks(host, document);
  const hooks = byHook(host, changed["hooks"]);
  for (const hook of [...host.before, ...host.other_hooks]) {
    const lasts = seconds + (host.before.includes(hook) && host.waits ? waitSeconds : 0);
    const values: JsonObject = {
      "@COMMAND@": command(host, url, hook, isFailClosed),
      "@SECONDS@": lasts,
      "@MILLISECONDS@": lasts * 1000,
    };
    const handler = filled(host.handler, hook, values);
    const matcher: JsonObject = host.matcher && hook.includes("Tool") ? { matcher: host.matcher } : {};
    const known = hooks[hook];
    hooks[hook] = [...(Array.isArray(known) ? known : []), host.nested ? { ...matcher, hooks: [handler] } : handler];
  }
  changed["hooks"] = asWritten(host, hooks);
  return host.version === undefined ? changed : { version: host.version, ...changed };
}

/** Return settings without LoopGuard's hooks. Entries that become empty are removed. */
export function withoutHooks(host: Host, document: JsonObject): JsonObject {
  const changed = { ...document };
  if (typeof changed["hooks"] !== "object") return changed;
  const hooks = byHook(host, changed["hooks"]);
  const kept: JsonObject = {};
  for (const [hook, groups] of Object.entries(hooks)) {
    const left = Array.isArray(groups) ? groups.flatMap((group) => groupWithout(host, group)) : groups;
    if (Array.isArray(left) ? left.length > 0 || (groups as Json[]).length === 0 : left) kept[hook] = left;
  }
  if (Object.keys(kept).length > 0 || Object.keys(hooks).length === 0) changed["hooks"] = asWritten(host, kept);
  else delete changed["hooks"];
  return changed;
}

function groupWithout(host: Host, group: Json): Json[] {
  if (isOurHandler(host, group)) return [];
  if (!isObject(group) || !Array.isArray(group["hooks"])) return [group];
  const left = group["hooks"].filter((handler) => !isOurHandler(host, handler));
  if (left.length === group["hooks"].length) return [group];
  return left.length > 0 ? [{ ...group, hooks: left }] : [];
}

/** Return the command of LoopGuard in each hook that has one. */
export function installedCommands(host: Host, document: JsonObject): Map<string, string> {
  const found = new Map<string, string>();
  for (const [hook, groups] of Object.entries(byHook(host, document["hooks"]))) {
    for (const group of Array.isArray(groups) ? groups : []) {
      const handlers = isObject(group) ? (group["hooks"] ?? [group]) : [];
      for (const handler of Array.isArray(handlers) ? handlers : []) {
        if (isOurHandler(host, handler)) found.set(hook, String(commandOf(handler, host.handler)));
      }
    }
  }
  return found;
}
