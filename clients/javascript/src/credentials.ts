/**
 * Address and key of the server: given, from the environment, or from files that only their owner may read.
 *
 * The key is stored as a configuration file of curl, because the hooks of coding agents are a line of curl.
 */

import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

export interface Credentials {
  url: string;
  key: string;
}

/** Return the folder of this account's settings. */
export function folder(): string {
  return join(homedir(), ".loopguard");
}

/** Return the file with the key. */
export function curlFile(): string {
  return join(folder(), "curl");
}

/** Return what `loopguard login` stored; empty where there is nothing. */
export function stored(): Credentials {
  const found = { url: "", key: "" };
  try {
    found.key = /^header = "Authorization: Bearer (lg_[\w-]+)"$/m.exec(readFileSync(curlFile(), "utf8"))?.[1] ?? "";
    const { url } = JSON.parse(readFileSync(join(folder(), "client.json"), "utf8")) as { url?: unknown };
    if (typeof url === "string") found.url = url;
  } catch {
    // Nothing is stored, or not in a form that can be read.
  }
  return found;
}

/** Return the given values, completed from the environment and from what is stored; throw if something is missing. */
export function findCredentials(url = "", key = ""): Credentials {
  const kept = stored();
  const isComplete = kept.url !== "" && kept.key !== "";
  const found = {
    url: url || process.env["LOOPGUARD_URL"] || (isComplete ? kept.url : ""),
    key: key || process.env["LOOPGUARD_KEY"] || (isComplete ? kept.key : ""),
  };
  const missing = [found.url ? "" : "the address of LoopGuard", found.key ? "" : "an API key"].filter(Boolean);
  if (missing.length > 0) {
    throw new TypeError(
      `Missing ${missing.join(" and ")}. Pass \`url\` and \`key\`, set LOOPGUARD_URL and LOOPGUARD_KEY, ` +
        "or run `loopguard login URL`.",
    );
  }
  return found;
}
