// What the marks mean, and the rule that makes them.

import type { SinkRule } from "../sinks/rule";
import { type Scale, SCALE_LABELS } from "../sinks/scales";
import { el, find, setText } from "./element";

const MARKS: readonly [string, string][] = [
  ["sink", "a sink in at least half of the maps in view"],
  ["sink some", "in one in twenty"],
  ["mask", "still masked"],
  ["commits", "committed after this step"],
  ["pinned", "pinned"],
];

export class Legend {
  private readonly about = el("p", { class: "note" });

  constructor() {
    const marks = MARKS.map(([name, text]) =>
      el("li", {}, el("span", { class: `key ${name}`, "aria-hidden": "true" }), text),
    );
    find("#legend").replaceChildren(el("ul", { class: "marks" }, ...marks), this.about);
  }

  show(scale: Scale, rule: SinkRule): void {
    setText(this.about, `Score: received attention, ${SCALE_LABELS[scale]}. Rule: ${rule.describe()}.`);
  }
}
