// The numbers above the charts: how many sinks the rule finds, at this step and over all.

import type { Derived } from "../measure/derived";
import { el, find, setText } from "./element";
import { percent, short } from "./numbers";

export class Statistics {
  readonly root = el("dl", { class: "statistics" });
  private readonly values: HTMLElement[];
  private readonly maps: HTMLElement;

  constructor() {
    this.values = [
      "sinks at this step",
      "of these maps hold one",
      "sinks in a map, all steps",
      "of all keys are sinks",
    ].map((label) => {
      const value = el("dd");
      this.root.append(el("div", {}, value, el("dt", {}, label)));
      return value;
    });
    this.maps = find("dt", this.root);
  }

  show(derived: Derived, step: number): void {
    const { counts } = derived.overview;
    const texts = counts ? numbers(derived, step) : ["–", "–", "–", "–"];
    this.values.forEach((value, index) => setText(value, texts[index]));
    setText(
      this.maps,
      derived.rows === 1 ? "sinks in the map of this step" : `sinks in ${derived.rows} maps at this step`,
    );
    this.root.dataset["sinks"] = counts && counts.left === 0 ? String(counts.sinks.reduce((a, b) => a + b, 0)) : "";
    this.root.dataset["stepSinks"] = counts?.done[step] ? String(counts.sinks[step]) : "";
    this.root.dataset["complete"] = String(derived.complete);
  }
}

function numbers({ overview, rows, keys }: Derived, step: number): string[] {
  const counts = overview.counts!;
  let maps = 0,
    cells = 0,
    sinks = 0;
  for (let at = 0; at < keys.length; at++) {
    if (!counts.done[at] || keys[at] === 0) continue;
    maps += rows;
    cells += rows * keys[at];
    sinks += counts.sinks[at];
  }
  const here = counts.done[step] && keys[step] > 0;
  return [
    here ? counts.sinks[step].toLocaleString("en") : "–",
    here ? percent(counts.some[step] / rows) : "–",
    short(sinks / maps),
    percent(sinks / cells),
  ];
}
