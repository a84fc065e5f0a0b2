// The bar that says which colour is which number: beside a chart on the page, and in every picture that is saved.

import { scaleLinear, scaleLog } from "d3-scale";
import { el, svg } from "../page/element";
import { short } from "../page/numbers";
import type { Palette } from "./colours";
import type { Shades } from "./shading";
import { FONT, type ThemeColours } from "./theme_colours";

const HEIGHT = 11;
const SIDE = 22;
export const BAR = { width: 300, height: 44 };

/** Shades from low to high with round numbers under them and a label above. */
export function colourBar(
  shades: Shades,
  palette: Palette,
  label: string,
  { soft, line }: ThemeColours,
): SVGSVGElement {
  const room = BAR.width - 2 * SIDE;
  const text = (x: number, y: number, anchor: string, words: string): SVGTextElement =>
    svg("text", { x, y, fill: soft, "font-size": "11px", "font-family": FONT, "text-anchor": anchor }, words);
  const root = svg("svg", { ...BAR, class: "colour-bar", role: "img", "aria-label": described(shades, label) });
  root.append(
    text(SIDE, 11, "start", label),
    svg("image", { x: SIDE, y: 16, width: room, height: HEIGHT, preserveAspectRatio: "none", href: strip(palette) }),
    svg("rect", { x: SIDE, y: 16, width: room, height: HEIGHT, fill: "none", stroke: line }),
  );
  for (const [value, part] of ticks(shades)) {
    const x = SIDE + part * room;
    root.append(svg("path", { d: `M${x} ${16 + HEIGHT}v3`, stroke: soft }), text(x, 41, "middle", value));
  }
  return root;
}

function described({ kind, low, high }: Shades, label: string): string {
  return `Colours: ${label}, ${kind === "log" ? "logarithmic, " : ""}from ${short(low)} to ${short(high)}`;
}

/** Numbers at round places, the ends among them, with the part of the bar at which each stands. */
function ticks({ kind, low, high }: Shades): [string, number][] {
  const scale = kind === "log" ? scaleLog([low, high], [0, 1]) : scaleLinear([low, high], [0, 1]);
  const round = scale.ticks(kind === "log" ? 4 : 3).filter((tick) => kind !== "log" || /^[125]/.test(short(tick)));
  const places: [string, number][] = [[kind === "log" ? `≤ ${short(low)}` : short(low), 0]];
  for (const tick of round) {
    const part = scale(tick);
    if (part - places[places.length - 1][1] > 0.13 && part < 0.87) places.push([short(tick), part]);
  }
  return [...places, [short(high), 1]];
}

/** The table as a picture, a pixel a colour. */
function strip({ fills }: Palette): string {
  const canvas = el("canvas", { width: fills.length, height: 1 });
  const context = canvas.getContext("2d")!;
  fills.forEach((fill, index) => {
    context.fillStyle = fill;
    context.fillRect(index, 0, 1, 1);
  });
  return canvas.toDataURL("image/png");
}
