/** Values in the form that the API accepts: bounded, printable, JSON. */

import { createHash, randomUUID } from "node:crypto";

/** Characters of a result that are sent; the server stores little more. */
const STORED_CHARACTERS = 16_000;
/** Longer arguments are sent with their long texts cut. */
const MAX_ARGUMENT_CHARACTERS = 32_000;
const MAX_TEXT_IN_ARGUMENTS = 2_000;
const MAX_DEPTH = 24;
const MAX_ITEMS = 1_000;
/** Values of one document that are read: an object of an application may refer to half of its memory. */
const MAX_VALUES = 50_000;
const LENGTHS = { tool: 128, agent: 128, backend: 128, model: 200, cwd: 1024, tag: 64, key: 64, name: 256 } as const;
export const MAX_NAME = LENGTHS.name;
/** Tags, and keys of metadata. */
const MAX_LABELS = 16;
/** Integers beyond this lose digits on their way through JSON. */
const MAX_NUMBER = 10 ** 15;

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type SentArguments = string | { [name: string]: Json };

export function newId(prefix: string): string {
  return prefix + randomUUID().replaceAll("-", "");
}

export function digest(value: string | Uint8Array): string {
  return createHash("sha256").update(value).digest("hex").slice(0, 32);
}

/** Return the beginning of a text; a character of two units is not split. */
function head(text: string, length: number): string {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
}

/** Return a name within its limit, of printable characters; a name that is too long ends in a digest. */
export function name(text: unknown, field: keyof typeof LENGTHS = "name"): string {
  const limit = LENGTHS[field];
  const clean = String(text ?? "").replace(/(?! )[\p{C}\p{Z}]/gu, "?");
  return clean.length <= limit ? clean : `${head(clean, limit - 17)}~${digest(clean).slice(0, 16)}`;
}

/** Return tags and metadata within the limits of the API, without those that are empty. */
export function labels(
  tags: readonly string[],
  metadata: Readonly<Record<string, string>>,
): { tags?: string[]; metadata?: Record<string, string> } {
  const sent = [...new Set(tags.filter(Boolean).map((tag) => name(tag, "tag")))].slice(0, MAX_LABELS);
  const pairs = Object.entries(metadata).filter(([key, value]) => key && value);
  const values = pairs.slice(0, MAX_LABELS).map(([key, value]) => [name(key, "key"), name(value)]);
  return {
    ...(sent.length > 0 ? { tags: sent } : {}),
    ...(values.length > 0 ? { metadata: Object.fromEntries(values) as Record<string, string> } : {}),
  };
}

/**
 * Return a result as text. A text beyond 16,000 characters is cut and ends in its length and digest, so that two long
 * results that differ only in what was cut still differ. Bytes become their length and digest.
 */
export function content(value: unknown): string | null {
  if (value === null || value === undefined) return null;
  const plainValue = typeof value === "string" ? value : plain(value);
  const text = typeof plainValue === "string" ? plainValue : dumps(plainValue);
  if (text.length <= STORED_CHARACTERS) return text;
  const mark = `[cut by loopguard-client: ${text.length} characters, sha256 ${digest(text)}]`;
  return `${head(text, STORED_CHARACTERS)}\n${mark}`;
}

/** Return the text of a list of text parts; any other content stays as it is. */
export function partsText(value: unknown): unknown {
  const isText = Array.isArray(value) && value.every((part: unknown) => isObject(part) && part["type"] === "text");
  return isText ? value.map((part: { text?: unknown }) => part.text).join("\n") : value;
}

/** Return arguments within the limits of the API; what is cut keeps its digest, so that calls still differ. */
export function sentArguments(value: unknown): SentArguments {
  if (value === null || value === undefined) return {};
  let given: unknown = value;
  if (typeof given === "string") {
    if (given.length <= MAX_ARGUMENT_CHARACTERS) return given;
    given = parsed(given);
    if (!isObject(given)) return shortText(value as string);
  }
  const plainValue = plain(given);
  const whole = isObject(plainValue) ? plainValue : { value: plainValue };
  if (dumps(whole).length <= MAX_ARGUMENT_CHARACTERS) return whole;
  const short = shortened(whole) as { [name: string]: Json };
  return dumps(short).length <= 4 * MAX_ARGUMENT_CHARACTERS ? short : cut(whole);
}

/** Return only length and digest of arguments. */
export function cut(value: SentArguments): { [name: string]: Json } {
  const text = typeof value === "string" ? value : dumps(value);
  return { cut_by_loopguard_client: { characters: text.length, sha256: digest(text) } };
}

/** Return what identical calls have in common: tool and directory, and the arguments in any order. */
export function key(tool: string, sent: SentArguments, cwd = ""): string {
  const value = typeof sent === "string" ? (parsed(sent) ?? sent) : sent;
  return digest(`${tool}\n${dumps(value)}${cwd && `\n${cwd}`}`);
}

/** Return JSON text with sorted keys. */
export function dumps(document: unknown): string {
  return JSON.stringify(document, (_, value: unknown) =>
    isObject(value)
      ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)))
      : value,
  );
}

export function isObject(value: unknown): value is Record<string, Json> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Return a value of JSON, or undefined. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Return any value as JSON. Never throws: what cannot be read becomes its text. */
export function plain(value: unknown): Json {
  let left = MAX_VALUES;
  const above = new Set<object>();

  function read(one: unknown): Json {
    if (one === null || typeof one === "boolean" || typeof one === "string") return one;
    if (typeof one === "number") return Number.isFinite(one) && Math.abs(one) < MAX_NUMBER ? one : String(one);
    if (typeof one !== "object") return textOf(one);
    if (one instanceof Uint8Array) return `[${one.length} bytes, sha256 ${digest(one)}]`;
    if (one instanceof Error) return `${one.name}: ${one.message}`;
    if (above.has(one)) return "[circular]";
    if (above.size >= MAX_DEPTH || left <= 0) return "[cut by loopguard-client]";
    above.add(one);
    try {
      return readObject(one);
    } catch {
      return textOf(one);
    } finally {
      above.delete(one);
    }
  }

  function readObject(one: object): Json {
    if ("toJSON" in one && typeof one.toJSON === "function") return read((one.toJSON as () => unknown)());
    if (Array.isArray(one) || one instanceof Set) {
      const items: Json[] = [];
      for (const item of one as Iterable<unknown>) {
        if ((left -= 1) < 0) break;
        items.push(read(item));
      }
      return items;
    }
    const fields: { [name: string]: Json } = {};
    for (const [field, item] of one instanceof Map ? one : Object.entries(one)) {
      if ((left -= 1) < 0) break;
      if (item !== undefined && typeof item !== "function") fields[head(textOf(field), 200)] = read(item);
    }
    return fields;
  }

  return read(value);
}

function textOf(value: unknown): string {
  try {
    return String(value);
  } catch {
    return typeof value;
  }
}

function shortText(text: string): string {
  return `${head(text, MAX_TEXT_IN_ARGUMENTS)} [${text.length} characters, sha256 ${digest(text)}]`;
}

function shortened(value: Json): Json {
  if (typeof value === "string") return value.length > MAX_TEXT_IN_ARGUMENTS ? shortText(value) : value;
  if (Array.isArray(value)) {
    if (value.length <= MAX_ITEMS) return value.map(shortened);
    return [...value.slice(0, 10).map(shortened), `[${value.length} items, sha256 ${digest(dumps(value))}]`];
  }
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([field, item]) => [field, shortened(item)]));
}
