import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { defineConfig } from "vite";

/** The folder of the package that a module belongs to, or null for the console's own. */
function packageOf(id) {
  let folder = dirname(id.split("?")[0].replace("\0", ""));
  while (folder.includes("node_modules")) {
    const file = join(folder, "package.json");
    if (existsSync(file) && JSON.parse(readFileSync(file, "utf8")).version) return folder;
    folder = dirname(folder);
  }
  return null;
}

/** Writes licenses.txt: each bundled package with its version, licence and the licence's text. */
const licenses = {
  name: "licenses",
  generateBundle() {
    const folders = new Set([...this.getModuleIds()].map(packageOf).filter(Boolean));
    const texts = [...folders].sort().map((folder) => {
      const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
      const text = file ? readFileSync(join(folder, file), "utf8") : "";
      return `${about.name} ${about.version}: ${about.license}\n\n${text.trim()}\n`;
    });
    this.emitFile({ type: "asset", fileName: "licenses.txt", source: texts.join(`\n${"-".repeat(72)}\n\n`) });
  },
};

const out = "../operator/src/streambroker_operator/ui/dist";

export default defineConfig({
  base: "./",
  plugins: [licenses],
  build: { outDir: out, emptyOutDir: true, modulePreload: false, chunkSizeWarningLimit: 800, assetsInlineLimit: 0 },
  server: { proxy: { "/api": "http://127.0.0.1:8470" } },
});
