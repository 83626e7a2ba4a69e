/** JSON as people write it, with comments, commas at the end and a byte order mark: read, and changed in one place. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

interface Token {
  kind: string;
  text: string;
  start: number;
  end: number;
  depth: number;
}

interface Member {
  name: string;
  start: number;
  valueStart: number;
  valueEnd: number;
}

export const BYTE_ORDER_MARK = "\ufeff";
const KINDS = ["string", "comment", "sign", "word", "space"];
const TOKEN = /("(?:[^"\\\n]|\\.)*")|(\/\/[^\r\n]*|\/\*[^]*?\*\/)|([{}[\]:,])|([^\s{}[\]:,"/]+)|(\s+)/y;

export const isObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Return the document; throw if it is no JSON even without comments and commas, or if a name occurs twice. */
export function parsed(text: string): Json {
  const meant = meantOf(tokens(text));
  const kept = meant.filter((token, at) => token.text !== "," || !["}", "]"].includes(meant[at + 1]?.text ?? ""));
  const scopes: (Set<string> | undefined)[] = [];
  kept.forEach((token, at) => {
    if (token.text === "{" || token.text === "[") scopes.push(token.text === "{" ? new Set() : undefined);
    else if (token.text === "}" || token.text === "]") scopes.pop();
    else if (token.kind === "string" && kept[at + 1]?.text === ":") {
      const name = JSON.parse(token.text) as string;
      const names = scopes.at(-1);
      if (names?.has(name)) throw new Error("a name occurs twice in an object");
      names?.add(name);
    }
  });
  return JSON.parse(kept.map((token) => token.text).join(" ")) as Json;
}

/** Return whether the value of a member of the outermost object has comments. */
export function hasComment(text: string, name: string): boolean {
  const all = tokens(text);
  const found = membersOf(all).find((one) => one.name === name);
  return all.some(
    ({ kind, start }) => found && kind === "comment" && found.valueStart <= start && start < found.valueEnd,
  );
}

/**
 * Return the text of an object with one member set to a value, or removed for undefined; all else stays as it is. New
 * text has the indentation and the line ends of the rest.
 */
export function replaced(text: string, name: string, value: Json | undefined): string {
  const all = tokens(text);
  const members = membersOf(all);
  const member = members.find((one) => one.name === name);
  if (value === undefined) return member ? without(text, all, member) : text;
  const indent = /^([ \t]+)\S/m.exec(text)?.[1] ?? "  ";
  const lineEnd = text.includes("\r\n") ? "\r\n" : "\n";
  const dumped = JSON.stringify(value, null, indent).replaceAll("\n", lineEnd + indent);
  if (member) return text.slice(0, member.valueStart) + dumped + text.slice(member.valueEnd);
  const line = `${lineEnd}${indent}${JSON.stringify(name)}: ${dumped}`;
  const last = members.at(-1);
  if (!last) {
    const start = meantOf(all)[0]!.end;
    const rest = text.slice(start);
    return text.slice(0, start) + line + (rest.trimEnd().includes("\n") ? rest : lineEnd + rest.trimStart());
  }
  const comma = all.find((one) => one.text === "," && one.start >= last.valueEnd && one.kind === "sign");
  const after = comma ? comma.end : last.valueEnd;
  const closing = all.filter((one) => one.depth === 0 && one.text === "}").at(-1)!.start;
  const rest = text.slice(after, closing).includes("\n") ? "" : lineEnd;
  return text.slice(0, after) + (comma ? "" : ",") + line + rest + text.slice(after);
}

function without(text: string, all: Token[], member: Member): string {
  const commas = all.filter((one) => one.text === "," && one.kind === "sign" && one.depth === 1);
  const after = commas.find((one) => one.start >= member.valueEnd);
  const before = commas.filter((one) => one.end <= member.start).at(-1);
  let start = text.slice(0, member.start).replace(/[ \t\r\n]+$/, "").length;
  if (!after && before && !text.slice(before.end, start).trim()) start = before.start;
  return text.slice(0, start) + text.slice(after?.end ?? member.valueEnd);
}

function tokens(text: string): Token[] {
  const found: Token[] = [];
  let place = text.startsWith(BYTE_ORDER_MARK) ? 1 : 0;
  let depth = 0;
  while (place < text.length) {
    TOKEN.lastIndex = place;
    const match = TOKEN.exec(text);
    if (!match) throw new Error(`line ${text.slice(0, place).split("\n").length} cannot be read`);
    const kind = KINDS[match.slice(1).findIndex((one) => one !== undefined)]!;
    if (match[0] === "}" || match[0] === "]") depth -= 1;
    found.push({ kind, text: match[0], start: place, end: place + match[0].length, depth });
    if (match[0] === "{" || match[0] === "[") depth += 1;
    place += match[0].length;
  }
  return found;
}

const meantOf = (all: Token[]): Token[] => all.filter(({ kind }) => kind !== "comment" && kind !== "space");

/** Return the members of the outermost object, of a text that `parsed` accepts. */
function membersOf(all: Token[]): Member[] {
  const meant = meantOf(all);
  return meant.flatMap((token, at) => {
    if (token.depth !== 1 || token.text !== ":") return [];
    const value = meant.slice(at + 1);
    const end = value.findIndex(({ depth, text }) => (depth === 1 && text === ",") || (depth === 0 && text === "}"));
    const { text: name, start } = meant[at - 1]!;
    const valueStart = value[0]!.start;
    return [{ name: JSON.parse(name) as string, start, valueStart, valueEnd: value[end - 1]!.end }];
  });
}
