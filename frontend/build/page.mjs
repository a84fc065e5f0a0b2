// Builds the one file of the page: styles and script inlined, the policy that allows just these two, and a digest of
// the sources, from which a test tells without node whether the committed page is current.
//
//   node build/page.mjs            writes src/sinkscope/report/page/page.html
//   node build/page.mjs --out FILE writes FILE

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const target = join(root, "..", "src", "sinkscope", "report", "page", "page.html");

/** What the page depends on: everything in src/, this file, and the locked packages. */
function sources() {
  const below = readdirSync(join(root, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) =>
      relative(root, join(entry.parentPath ?? entry.path, entry.name))
        .split(sep)
        .join("/"),
    );
  return [...below, "build/page.mjs", "package-lock.json"].sort();
}

function digest() {
  const hash = createHash("sha256");
  for (const name of sources()) {
    hash.update(`${name}\0`);
    hash.update(readFileSync(join(root, name), "utf8").replaceAll("\r\n", "\n"));
    hash.update("\0");
  }
  return hash.digest("hex");
}

async function bundle(entry, options) {
  const result = await build({
    entryPoints: [join(root, "src", entry)],
    bundle: true,
    minify: true,
    write: false,
    target: ["es2022"],
    legalComments: "none",
    logLevel: "warning",
    absWorkingDir: root,
    metafile: true,
    ...options,
  });
  return { text: result.outputFiles[0].text.trim(), inputs: Object.keys(result.metafile.inputs) };
}

/** The licences of the packages that went into a bundle, which have to go with it. */
function notices(inputs) {
  const packages = new Set(
    inputs.map((name) => /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(name)?.[1]).filter(Boolean),
  );
  const told = [...packages].sort().map((name) => {
    const folder = join(root, "node_modules", name);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    return `${name} ${version}\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}`;
  });
  return `<!--\nContains these packages:\n\n${told.join("\n\n").replaceAll("--", "- -")}\n-->`;
}

function sha256(text) {
  return `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;
}

const bundled = await bundle("main.ts", { format: "iife" });
const script = bundled.text.replaceAll("</script", "<\\/script");
const { text: style } = await bundle("page.css", {});
const policy = [
  "default-src 'none'",
  `script-src ${sha256(script)}`,
  `style-src ${sha256(style)}`,
  "img-src data: blob:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const parts = { POLICY: policy, SOURCES: digest(), STYLE: style, SCRIPT: script, NOTICES: notices(bundled.inputs) };
const page = readFileSync(join(root, "src", "index.html"), "utf8").replace(
  /__([A-Z]+)__/g,
  (whole, name) => parts[name] ?? whole,
);

const at = process.argv.indexOf("--out");
const file = at > 0 ? process.argv[at + 1] : target;
mkdirSync(dirname(file), { recursive: true });
writeFileSync(file, page);
console.log(`${file}: ${(page.length / 1024).toFixed(0)} KiB`);
