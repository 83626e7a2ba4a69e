// Makes the package of what tsc has compiled: without white space, with ES modules that pass on what the compiled
// modules export (both module systems share one guard and its errors), and with the command in one file. The tables and
// programs of hooks are those of the Python client; the package takes copies along.
import { chmodSync, copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

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
rmSync("dist/command.d.ts");
buildSync({
  entryPoints: ["src/command.ts"], outfile: "dist/command.js", bundle: true, platform: "node", minify: true, target,
});
chmodSync("dist/command.js", 0o755);
mkdirSync("dist/hooks");
const { hosts, ...tables } = JSON.parse(readFileSync(`${HOOKS}/hosts.json`, "utf8"));
writeFileSync("dist/hooks/hosts.json", JSON.stringify({ ...tables, hosts }));
const scripts = new Set(Object.values(hosts).flatMap(({ script }) => script ?? []));
for (const name of ["hook.sh", "plugin.js", ...scripts]) copyFileSync(`${HOOKS}/${name}`, `dist/hooks/${name}`);

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
