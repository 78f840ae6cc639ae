import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

/** Writes the licences of the bundled packages into `licenses.txt` beside the page. */
export function licenses(): Plugin {
  return {
    name: "licenses",
    apply: "build",
    generateBundle() {
      const { dependencies } = JSON.parse(readFileSync("package.json", "utf8")) as { dependencies: object };
      const source = Object.keys(dependencies).map(licenseOf).join("\n\n");
      this.emitFile({ type: "asset", fileName: "licenses.txt", source });
    },
  };
}

function licenseOf(name: string): string {
  const directory = join("node_modules", name);
  const { version } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8")) as { version: string };
  const file = readdirSync(directory).find((each) => /^licen[cs]e/i.test(each));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version}\n\n${readFileSync(join(directory, file), "utf8").trim()}\n`;
}
