// What the marks mean, and the rule that makes them.

import type { SinkRule } from "../sinks/rule";
import { type Scale, SCALE_LABELS } from "../sinks/scales";
import { el, find, setText } from "./element";
import type { Subject } from "./pointing";

/** What there is to explain: one map has no thin outlines, and some samples have no masks or all keys at every step. */
function marksOf(subjects: readonly Subject[]): [string, string][] {
  const several = subjects.some(({ derived }) => derived.rows > 1);
  const masks = subjects.some(({ sample }) => sample.spec.bidirectional);
  const absent = subjects.some(({ derived, sample }) =>
    derived.scores.some((score, at) => Number.isNaN(score) && derived.keys[Math.floor(at / sample.spec.positions)] > 0),
  );
  return [
    several ? ["sink", "a sink in at least half of the maps in view"] : ["sink", "a sink in the map in view"],
    ...(several ? [["sink some", "in one in twenty"] as [string, string]] : []),
    ...(masks ? [["mask", "still masked"] as [string, string]] : []),
    ...(absent ? [["absent", "not written yet"] as [string, string]] : []),
    ["commits", "committed after this step"],
    ["pinned", "pinned"],
  ];
}

export class Legend {
  private readonly about = el("p", { class: "note" });
  private readonly marks = el("ul", { class: "marks" });
  private drawn: unknown[] = [];

  constructor() {
    find("#legend").replaceChildren(this.marks, this.about);
  }

  show(scale: Scale, rule: SinkRule, subjects: readonly Subject[]): void {
    const key = subjects.map(({ derived }) => derived);
    if (key.length !== this.drawn.length || key.some((part, index) => part !== this.drawn[index])) {
      this.drawn = key;
      const marks = marksOf(subjects).map(([name, text]) =>
        el("li", {}, el("span", { class: `key ${name}`, "aria-hidden": "true" }), text),
      );
      this.marks.replaceChildren(...marks);
    }
    setText(this.about, `Score: received attention, ${SCALE_LABELS[scale]}. Rule: ${rule.describe()}.`);
  }
}
