// What the marks and colours mean, with the bar of shades.

import type { Shades } from "../charts/shading";
import type { ThemeColours } from "../charts/theme_colours";
import type { SinkRule } from "../sinks/rule";
import { type Scale, SCALE_LABELS } from "../sinks/scales";
import { el, find, setText } from "./element";
import { short } from "./numbers";

const MARKS: readonly [string, string][] = [
  ["sink", "a sink, by the rule, in what is shown"],
  ["mask", "still masked"],
  ["commits", "committed after this step"],
  ["pinned", "pinned"],
];

export class Legend {
  private readonly bar = el("canvas", { class: "shade-bar", width: 256, height: 1, "aria-hidden": "true" });
  private readonly low = el("span");
  private readonly high = el("span");
  private readonly about = el("p", { class: "note" });
  private key = "";

  constructor() {
    const marks = MARKS.map(([name, text]) =>
      el("li", {}, el("span", { class: `key ${name}`, "aria-hidden": "true" }), text),
    );
    const scale = el("p", { class: "shade-scale" }, this.low, this.bar, this.high);
    find("#legend").replaceChildren(scale, el("ul", { class: "marks" }, ...marks), this.about);
  }

  show(shades: Shades, colours: ThemeColours, scale: Scale, rule: SinkRule): void {
    const key = [shades.kind, shades.low, shades.high, colours.palette.dark].join();
    setText(this.about, `Score: received attention on the scale ${SCALE_LABELS[scale]}. Rule: ${rule.describe()}.`);
    if (key === this.key) return;
    this.key = key;
    setText(this.low, shades.kind === "log" ? `≤ ${short(shades.low)}` : short(shades.low));
    setText(this.high, short(shades.high));
    const context = this.bar.getContext("2d")!;
    colours.palette.fills.forEach((fill, index) => {
      context.fillStyle = fill;
      context.fillRect(index, 0, 1, 1);
    });
  }
}
