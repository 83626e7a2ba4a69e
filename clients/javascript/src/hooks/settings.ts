/** Changes the settings files of coding agents, with a backup, and only if nothing would be lost. */

import { createHash } from "node:crypto";
import * as fs from "node:fs";
import { basename, dirname, join } from "node:path";
import { isDeepStrictEqual } from "node:util";

import { folder } from "../credentials";
import { type Host, isOurs, plugin, settingsFile, triggerField, withHooks, withoutHooks } from "./hosts";
import { BYTE_ORDER_MARK, hasComment, isObject, type JsonObject, parsed, replaced } from "./jsonc";

/** A problem to report to the person. */
export class Problem extends Error {}

/** A pending change to one file: its text before and after, undefined where it does not exist. */
export interface Change {
  file: string;
  before: string | undefined;
  after: string | undefined;
  /** The text of files that belong to a plugin; undefined where they are to be removed. */
  beside?: Record<string, string | undefined>;
}

/** Return whether the files need a change. */
export const isNeeded = ({ before, after, beside }: Change): boolean =>
  before !== after || Object.entries(beside ?? {}).some(([file, text]) => textOf(file) !== text);

function besideOf(host: Host, file: string, isThere: boolean): Record<string, string | undefined> {
  const texts = Object.entries(host.beside ?? {});
  return Object.fromEntries(
    texts.map(([name, document]) => [
      join(dirname(file), name),
      isThere ? `${JSON.stringify(document, null, 2)}\n` : undefined,
    ]),
  );
}

/** Return the change that installs LoopGuard's hooks for an address. */
export function installation(host: Host, url: string, isFailClosed: boolean, project: string): Change {
  const { file, before } = read(host, project);
  if (host.form === "plugin") {
    return { file, before, after: plugin(host, url, isFailClosed), beside: besideOf(host, file, true) };
  }
  const document = parsedSettings(host, file, before);
  const changed = withHooks(host, document, url, isFailClosed);
  const isDone = isDeepStrictEqual(document, changed);
  return { file, before, after: isDone ? before : changedText(file, host, changed, before) };
}

/**
 * Return the change that removes LoopGuard's hooks and nothing else. If nobody has changed the file since the
 * installation, it gets its content from before, byte for byte.
 */
export function removal(host: Host, project: string): Change {
  const { file, before } = read(host, project);
  if (before === undefined) return { file, before, after: before };
  const earlier = kept(file, before);
  const gone = { file, before, after: undefined, beside: besideOf(host, file, false) };
  if (earlier) return earlier.before === null ? gone : { file, before, after: earlier.before };
  if (host.form === "plugin") return isOurs(host, before) ? gone : { file, before, after: before };
  const document = parsedSettings(host, file, before);
  const changed = withoutHooks(host, document);
  if (isDeepStrictEqual(document, changed)) return { file, before, after: before };
  const isEmpty = host.is_own_file && Object.keys(changed).every((name) => name === "version");
  return { file, before, after: isEmpty ? undefined : changedText(file, host, changed, before) };
}

/** Write or remove the file, and return the backup of its previous content. */
export function make({ file, before, after, beside }: Change): string {
  if (textOf(file) !== before) {
    throw new Problem(`${file} was changed by another program in the meantime. Nothing was changed; try again.`);
  }
  const mode = before === undefined ? 0o600 : fs.statSync(file).mode & 0o777;
  let backup = "";
  if (before !== undefined) {
    const now = new Date();
    const local = new Date(now.getTime() - now.getTimezoneOffset() * 60_000).toISOString();
    backup = `${file}.before-loopguard-${local.slice(0, 19).replaceAll(/[-:]/g, "").replace("T", "-")}`;
    writePrivate(backup, before, mode);
  }
  put(file, after, mode);
  for (const [name, text] of Object.entries(beside ?? {})) put(name, text);
  return backup;
}

function put(file: string, text: string | undefined, mode?: number): void {
  if (text === undefined) {
    fs.rmSync(file, { force: true });
    return;
  }
  fs.mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  writePrivate(file, text, mode);
}

/** Keep what a file was before the installation that is to be made, for the removal. */
export function keep({ file, before, after }: Change): void {
  const earlier = before === undefined ? undefined : kept(file, before);
  const record = recordOf(file);
  if (!earlier && before?.includes("/api/v1/hooks/")) {
    fs.rmSync(record, { force: true }); // hooks of an installation that is not known
    return;
  }
  fs.mkdirSync(dirname(record), { recursive: true, mode: 0o700 });
  const first = earlier ? earlier.before : (before ?? null);
  writePrivate(record, JSON.stringify({ file, after: digest(after ?? ""), before: first }));
}

/** Replace a file atomically, with its mode set from the start. */
export function writePrivate(file: string, text: string, mode = 0o600): void {
  const partial = join(dirname(file), `.${basename(file)}.${process.pid}`);
  fs.rmSync(partial, { force: true });
  try {
    const handle = fs.openSync(partial, "wx", mode);
    try {
      if (process.platform !== "win32") fs.fchmodSync(handle, mode);
      fs.writeFileSync(handle, text);
      fs.fsyncSync(handle);
    } finally {
      fs.closeSync(handle);
    }
    fs.renameSync(partial, file);
  } catch (error) {
    fs.rmSync(partial, { force: true });
    throw error;
  }
}

/** Return a settings file, behind links, and its text. */
export function read(host: Host, project: string): { file: string; before: string | undefined } {
  let file = settingsFile(host, project);
  if (fs.lstatSync(file, { throwIfNoEntry: false })?.isSymbolicLink()) file = fs.realpathSync(file);
  try {
    return { file, before: textOf(file) };
  } catch (error) {
    throw new Problem(`${file} cannot be read: ${String(error)}. Nothing was changed.`);
  }
}

/** Return the settings in a text. */
export function parsedSettings(host: Host, file: string, text: string | undefined): JsonObject {
  if (text === undefined || !text.replace(BYTE_ORDER_MARK, "").trim()) return {};
  let document;
  try {
    document = parsed(text);
  } catch (error) {
    throw new Problem(`${file} is not JSON (${(error as Error).message}). Nothing was changed.`);
  }
  if (isObject(document)) {
    const isList = triggerField(host) !== undefined;
    const hooks = document["hooks"] ?? (isList ? [] : {});
    const isKnown = isList
      ? Array.isArray(hooks) && hooks.every(isObject)
      : isObject(hooks) && Object.values(hooks).every((one) => Array.isArray(one) || one === !!one);
    if (isKnown) return document;
  }
  throw new Problem(`${file} does not have a known form of hooks. Nothing was changed.`);
}

function textOf(file: string): string | undefined {
  if (!fs.existsSync(file)) return undefined;
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(fs.readFileSync(file));
}

function changedText(file: string, host: Host, document: JsonObject, before: string | undefined): string {
  if (before === undefined || !before.replace(BYTE_ORDER_MARK, "").trim()) {
    return `${JSON.stringify(document, null, 2)}\n`;
  }
  if (hasComment(before, "hooks")) {
    throw new Problem(
      `${file} has comments among its hooks, which would be lost. Nothing was changed. ` +
        `Set \`"hooks"\` to this by hand:\n${JSON.stringify(document["hooks"] ?? {}, null, 2)}`,
    );
  }
  const text = replaced(before, "hooks", document["hooks"]);
  const hasVersion = "version" in (parsed(before) as JsonObject);
  return host.version !== undefined && !hasVersion ? replaced(text, "version", host.version) : text;
}

function kept(file: string, text: string): { before: string | null } | undefined {
  try {
    const record = JSON.parse(fs.readFileSync(recordOf(file), "utf8")) as { after?: string; before?: string | null };
    return record.after === digest(text) && record.before !== undefined ? { before: record.before } : undefined;
  } catch {
    return undefined;
  }
}

const recordOf = (file: string): string => join(folder(), "installed", `${digest(file)}.json`);
const digest = (text: string): string => createHash("sha256").update(text).digest("hex");
