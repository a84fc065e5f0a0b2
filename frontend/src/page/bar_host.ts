// Keeps a colour bar in the page, drawn anew only when it says something else.

import { colourBar } from "../charts/colour_bar";
import type { Palette } from "../charts/colours";
import type { Shades } from "../charts/shading";
import type { ThemeColours } from "../charts/theme_colours";
import { el } from "./element";

export class BarHost {
  readonly root = el("div", { class: "bar-host" });
  private drawn: unknown[] = [];

  show(shades: Shades, palette: Palette, label: string, colours: ThemeColours): void {
    const key = [shades.kind, shades.low, shades.high, palette, label];
    if (key.every((part, index) => part === this.drawn[index])) return;
    this.drawn = key;
    this.root.replaceChildren(colourBar(shades, palette, label, colours));
  }

  /** For a picture that is saved. */
  copy(): SVGSVGElement | null {
    const bar = this.root.querySelector<SVGSVGElement>("svg");
    return bar ? (bar.cloneNode(true) as SVGSVGElement) : null;
  }
}
