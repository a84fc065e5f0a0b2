// The pinned tokens as a row of buttons: the legend of their curves, and the way to take a pin out.

import type { Sample } from "../document/sample";
import type { Derived } from "../measure/derived";
import { tokenAt, tokenName } from "./details";
import { el, svg } from "./element";
import type { Lexicon } from "./lexicon";
import { short } from "./numbers";

export class Pins {
  readonly root = el("ul", { class: "pins", "aria-label": "Pinned tokens" });

  constructor(private readonly unpin: (position: number) => void) {}

  show(sample: Sample, lexicon: Lexicon, derived: Derived, pins: readonly number[], step: number): void {
    const key = pins.map(
      (pin) => `${pin}:${tokenAt(sample, step, pin)}:${derived.scores[step * sample.spec.positions + pin]}`,
    );
    if (this.root.dataset["key"] === key.join()) return;
    this.root.dataset["key"] = key.join();
    const held = this.root.contains(document.activeElement);
    this.root.replaceChildren(
      ...pins.map((pin, index) => {
        const name = tokenName(lexicon, tokenAt(sample, step, pin));
        const score = short(derived.scores[step * sample.spec.positions + pin]);
        const swatch = svg("svg", { class: "swatch", width: 22, height: 8, "aria-hidden": "true" });
        swatch.append(svg("path", { class: `line line-${index}`, d: "M0 4H22" }));
        const button = el("button", { type: "button", "aria-label": `Unpin position ${pin}` }, "×");
        button.addEventListener("click", () => this.unpin(pin));
        return el("li", {}, swatch, el("span", {}, `${pin} `, el("bdi", {}, name)), el("b", {}, score), button);
      }),
    );
    if (held) this.root.querySelector("button")?.focus();
  }
}
