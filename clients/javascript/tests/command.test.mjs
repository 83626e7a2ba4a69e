// The command of the packed package, on a machine whose account has nothing yet.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { newName, server } from "./support.mjs";

const ROOT = new URL("..", import.meta.url).pathname;
const MILLISECONDS = 60_000;
let folder;

before(() => {
  folder = mkdtempSync(join(tmpdir(), "loopguard-command-"));
  const npm = (words, cwd) => spawnSync("npm", words, { cwd, encoding: "utf8", timeout: MILLISECONDS });
  const packed = npm(["pack", "--ignore-scripts", "--pack-destination", folder], ROOT);
  writeFileSync(join(folder, "package.json"), "{}");
  const installed = npm(["install", "--no-audit", "--no-fund", packed.stdout.trim().split("\n").at(-1)], folder);
  assert.equal(installed.status, 0, installed.stderr);
});

after(() => rmSync(folder, { recursive: true, force: true }));

/** Run the command with a home folder of its own. */
function command(home, words, { input = "", ...variables } = {}) {
  const kept = Object.entries(process.env).filter(([name]) => !/^(LOOPGUARD|CLAUDE|OPENCODE|XDG)_/.test(name));
  const done = spawnSync(join(folder, "node_modules", ".bin", "loopguard-client"), ["hooks", ...words], {
    cwd: folder,
    encoding: "utf8",
    env: { ...Object.fromEntries(kept), HOME: home, ...variables },
    input,
    timeout: MILLISECONDS,
  });
  return { status: done.status, text: done.stdout + done.stderr };
}

const newHome = () => mkdtempSync(join(folder, "home-"));

test("hooks are installed, work, are checked and are removed without Python", () => {
  const home = newHome();
  const installed = command(home, ["install", "claude-code", "--url", server.url], { input: `${server.key}\n` });
  assert.equal(installed.status, 0, installed.text);
  const file = join(home, ".claude", "settings.json");
  const hook = JSON.parse(readFileSync(file, "utf8")).hooks.PreToolUse[0].hooks[0].command;
  const session = newName();
  const decisions = [1, 2, 3, 4].map((number) => {
    const body = {
      session_id: session, hook_event_name: "PreToolUse", tool_name: "Bash", tool_use_id: `t${number}`,
      tool_input: { command: "make test" },
    };
    const options = { input: JSON.stringify(body), encoding: "utf8", timeout: MILLISECONDS };
    const { stdout, status } = spawnSync("/bin/sh", ["-c", hook], options);
    assert.equal(status, 0);
    return JSON.parse(stdout || "{}").hookSpecificOutput?.permissionDecision;
  });
  assert.deepEqual(decisions, [undefined, undefined, undefined, "deny"]);
  const checked = command(home, ["check", "claude-code"]);
  assert.equal(checked.status, 0, checked.text);
  assert.match(checked.text, /A call sent through the hook reached/);
  writeFileSync(file, readFileSync(file, "utf8").replace("{", '{"disableAllHooks": true,'));
  assert.match(command(home, ["check", "claude-code"]).text, /PROBLEM.*disableAllHooks/);
  assert.equal(command(home, ["uninstall", "claude-code"]).status, 0);
  assert.deepEqual(JSON.parse(readFileSync(file, "utf8")), { disableAllHooks: true });
});

test("a plugin is installed with the address and checked", () => {
  const home = newHome();
  const key = { LOOPGUARD_URL: server.url, LOOPGUARD_KEY: server.key };
  assert.equal(command(home, ["install", "opencode", "--fail-closed"], key).status, 0);
  const file = join(home, ".config", "opencode", "plugins", "loopguard.js");
  assert.match(readFileSync(file, "utf8"), new RegExp(`${server.url}/api/v1/hooks/opencode`));
  assert.equal(command(home, ["check", "opencode"]).status, 0);
  writeFileSync(file, "// mine");
  assert.match(command(home, ["check", "opencode"]).text, /PROBLEM.*not the plugin of this version/);
});

test("a key that the server does not accept is not stored, and nothing is installed", () => {
  const home = newHome();
  const wrong = { LOOPGUARD_URL: server.url, LOOPGUARD_KEY: "lg_0000000000_wrong" };
  const { status, text } = command(home, ["install", "claude-code"], wrong);
  assert.equal(status, 1);
  assert.match(text, /does not accept this key\. Nothing was stored/);
  assert.ok(!existsSync(join(home, ".loopguard")));
  assert.ok(!existsSync(join(home, ".claude")));
});

test("wrong words are told with the usage", () => {
  for (const words of [[], ["install"], ["install", "nobody"], ["install", "pi", "--no-such"], ["toString", "pi"]]) {
    const { status, text } = command(newHome(), words);
    assert.equal(status, 2, words.join(" "));
    assert.match(text, /usage: loopguard-client hooks/);
    assert.equal(text.includes('"nobody" is not part of this command.'), words.includes("nobody"));
  }
  assert.equal(command(newHome(), ["install", "claude-code", "--url", "ftp://x"], { LOOPGUARD_KEY: "lg_x" }).status, 1);
});
