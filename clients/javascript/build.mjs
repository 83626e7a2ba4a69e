// Adds ES modules that pass on what the compiled modules export: both module systems share one guard and its errors.
import { readFileSync, writeFileSync } from "node:fs";

const { exports } = JSON.parse(readFileSync("package.json", "utf8"));
for (const entry of Object.values(exports).filter((entry) => entry.import)) {
  const line = `export * from "${entry.require.replace("./dist/", "./")}";\n`;
  writeFileSync(entry.import, line);
  writeFileSync(entry.import.replace(".mjs", ".d.mts"), line);
}
