// The drawers: what a sink is, where what is shown comes from, and the keys.

import type { LogEncoding, SampleSpec, TraceSpec } from "../document/types";
import type { SinkRule } from "../sinks/rule";
import { el, find } from "./element";
import { KEYS } from "./keys";
import { smallPercent } from "./numbers";

type Entry = [string, string];

/** Nested values as lines: "decoding" {"seed": 0} is "seed" 0 under the heading "decoding". */
function entries(value: unknown, prefix = ""): Entry[] {
  if (value === null || value === undefined) return [[prefix, "none"]];
  if (Array.isArray(value) && value.every((item) => typeof item !== "object"))
    return [[prefix, value.join(", ") || "none"]];
  if (typeof value !== "object") return [[prefix, String(value)]];
  return Object.entries(value).flatMap(([name, inner]) => entries(inner, prefix ? `${prefix}.${name}` : name));
}

function list(heading: string, rows: readonly Entry[]): HTMLElement {
  const terms = rows.map(([name, value]) =>
    el("div", {}, el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, value)),
  );
  return el("section", {}, el("h3", {}, heading), el("dl", {}, ...terms));
}

function sampleEntries(sample: SampleSpec): Entry[] {
  const encoding = sample.arrays["received"]?.encoding;
  return [
    ["sample", sample.id],
    ["steps", `${sample.steps}${sample.complete ? "" : " so far, unfinished"}`],
    ["layers x heads", `${sample.layers} x ${sample.heads}`],
    ["positions", `${sample.positions}, the prompt has ${sample.prompt_length}`],
    ["attention", sample.bidirectional ? "bidirectional" : "causal"],
    ["rounding in this page", encoding ? rounding(encoding) : "none"],
    ["text", sample.text ?? "none"],
  ];
}

function rounding({ worst_relative_error, low }: LogEncoding): string {
  const within = `every amount within ${smallPercent(worst_relative_error)} of the recorded one`;
  return `${within}; less than ${smallPercent(low)} of attention counts as that much`;
}

function provenance(trace: TraceSpec): HTMLElement[] {
  const parts = trace.provenance && typeof trace.provenance === "object" ? Object.entries(trace.provenance) : [];
  const nested = parts.filter(([, value]) => value !== null && typeof value === "object" && !Array.isArray(value));
  const plain = parts.filter((part) => !nested.includes(part));
  const sections = nested.map(([name, value]) => list(name.replaceAll("_", " "), entries(value)));
  return plain.length > 0
    ? [
        ...sections,
        list(
          "trace",
          plain.flatMap(([name, value]) => entries(value, name)),
        ),
      ]
    : sections;
}

function open(dialog: HTMLDialogElement, heading: string, id: string, ...content: HTMLElement[]): void {
  const close = el("button", { type: "button", class: "close" }, "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(el("header", {}, el("h2", { id }, heading), close), ...content);
  dialog.showModal();
}

export function openProvenance(shown: readonly { trace: TraceSpec; sample: SampleSpec }[]): void {
  const content = shown.flatMap(({ trace, sample }) => [
    el("h3", { class: "trace-name" }, el("bdi", {}, trace.name)),
    list("sample", sampleEntries(sample)),
    ...(sample.intervention === null ? [] : [list("intervention", entries(sample.intervention))]),
    ...provenance(trace),
  ]);
  open(find<HTMLDialogElement>("#drawer"), "About these traces", "drawer-title", ...content);
}

export function openKeys(): void {
  const rows = KEYS.map(([keys, does]) => {
    const caps = keys.split(" ").flatMap((key) => [el("kbd", {}, key), " "]);
    return el("div", {}, el("dt", {}, ...caps), el("dd", {}, does));
  });
  open(find<HTMLDialogElement>("#keys"), "Keyboard", "keys-title", el("dl", { class: "key-list" }, ...rows));
}

export function openSinks(rule: SinkRule): void {
  const text =
    "An attention sink is a key (the token at one position) that receives far more attention than its fair share, " +
    "which is what it would get if each query spread its attention evenly. Which keys count as sinks in a map " +
    `(one layer and head at one step) is decided by the rule above the charts: ${rule.describe()}.`;
  open(find<HTMLDialogElement>("#drawer"), "What is a sink?", "drawer-title", el("p", {}, text));
}

/** A click beside a dialog closes it. */
export function closeOnBackdrop(): void {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }
}
