// The numbers above the charts: how many sinks the rule finds in the maps in view, at this step and over all.

import type { Derived } from "../measure/derived";
import { el, setText } from "./element";
import { percent, short } from "./numbers";

export class Statistics {
  readonly root = el("dl", { class: "statistics" });
  private readonly items = Array.from({ length: 4 }, () => {
    const [value, label] = [el("dd"), el("dt")];
    this.root.append(el("div", {}, label, value));
    return { value, label };
  });

  show(derived: Derived, step: number): void {
    const { counts } = derived.overview;
    numbers(derived, step).forEach(([value, label], index) => {
      setText(this.items[index].value, counts ? value : "–");
      setText(this.items[index].label, label);
    });
    this.root.dataset["sinks"] = counts && counts.left === 0 ? String(counts.sinks.reduce((a, b) => a + b, 0)) : "";
    this.root.dataset["stepSinks"] = counts?.done[step] ? String(counts.sinks[step]) : "";
    this.root.dataset["complete"] = String(derived.complete);
  }
}

function numbers({ overview, rows, keys }: Derived, step: number): [string, string][] {
  const counts = overview.counts;
  let steps = 0,
    some = 0,
    cells = 0,
    sinks = 0;
  for (let at = 0; counts && at < keys.length; at++) {
    if (!counts.done[at] || keys[at] === 0) continue;
    steps++;
    some += counts.some[at];
    cells += rows * keys[at];
    sinks += counts.sinks[at];
  }
  const here = counts !== null && counts.done[step] === 1 && keys[step] > 0;
  const now = here ? counts.sinks[step].toLocaleString("en") : "–";
  const one = now === "1" ? "sink" : "sinks";
  return [
    [now, rows === 1 ? `${one} in this map at this step` : `${one} in ${rows} maps at this step`],
    rows === 1
      ? [percent(some / steps), "of its steps have one"]
      : [here ? percent(counts.some[step] / rows) : "–", "of these maps hold one"],
    [short(sinks / (steps * rows)), "sinks in a map, mean over all steps"],
    [percent(sinks / cells), "of all keys are sinks"],
  ];
}
