// Makes the package of what tsc has compiled: without white space, with ES modules that pass on what the compiled
// modules export (both module systems share one guard and its errors), and with the command in one file. That has the
// tables and scripts of hooks in it, which are those of the Python client.
import { chmodSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

import { buildSync, transformSync } from "esbuild";

const HOOKS = "../python/loopguard_client/hooks";
const PUBLIC = ["index", "guard", "session", "calls"]; // besides the entries of the package
const target = "node20";

const { exports } = JSON.parse(readFileSync("package.json", "utf8"));
const entries = Object.values(exports).filter((entry) => entry.import);
for (const entry of entries) {
  const line = `export * from "${entry.require.replace("./dist/", "./")}";\n`;
  writeFileSync(entry.import, line);
  writeFileSync(entry.import.replace(".mjs", ".d.mts"), line);
}

rmSync("dist/hooks", { recursive: true });
for (const name of ["command", "credentials"]) rmSync(`dist/${name}.d.ts`);
const tables = JSON.parse(readFileSync(`${HOOKS}/hosts.json`, "utf8"));
const scripts = new Set(Object.values(tables.hosts).flatMap(({ script }) => script ?? []));
const texts = ["hook.sh", "plugin.js", ...scripts].map((name) => [name, readFileSync(`${HOOKS}/${name}`, "utf8")]);
const define = { TABLES: JSON.stringify({ ...tables, texts: Object.fromEntries(texts) }) };
const command = { entryPoints: ["src/command.ts"], outfile: "dist/command.js", platform: "node" };
buildSync({ ...command, bundle: true, minify: true, target, define });
chmodSync("dist/command.js", 0o755);

const names = new Set([...PUBLIC, ...entries.map(({ require }) => require.slice("./dist/".length, -".js".length))]);
const isPublic = (file) => names.has(file.slice(0, -".d.ts".length));
for (const file of readdirSync("dist").filter((file) => file !== "command.js")) {
  const text = () => readFileSync(`dist/${file}`, "utf8");
  if (file.endsWith(".js")) {
    // Without a module format, names at the top stay: those of errors are seen by people. Node.js finds the exports of
    // CommonJS by their usual syntax, so that stays, too.
    const small = transformSync(text(), { minifyWhitespace: true, minifyIdentifiers: true, target });
    writeFileSync(`dist/${file}`, small.code);
  } else if (file.endsWith(".d.ts") && !isPublic(file)) {
    writeFileSync(`dist/${file}`, text().replace(/^ *\/\*\*[^]*?\*\/\n/gm, ""));
  }
}
