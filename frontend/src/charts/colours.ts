// The colour tables: those of the printed figures, evenly spaced in lightness, so that they read in grey and with any
// colour vision. Low values are near the paper and high ones far from it, on light paper and on dark. The accent (blue)
// is never in the table, and sinks have an outline besides.

import { HEAT } from "./heat";

export type Rgb = readonly [number, number, number];

const COUNT = 256;
const heat: readonly Rgb[] = Array.from({ length: COUNT }, (_, index) => {
  const code = parseInt(HEAT.slice(6 * index, 6 * index + 6), 16);
  return [code >> 16, (code >> 8) & 255, code & 255];
});

const DARK_PAPER: Rgb = [25, 31, 40];
/** The share of the table that comes out of the paper. */
const DAWN = 0.16;

export function colourTable(dark: boolean): Rgb[] {
  if (!dark) return [...heat];
  // Read backwards from where it is twice as light as dark paper.
  const nights = [...heat].reverse();
  const from = nights.findIndex((colour) => luminance(colour) > 2 * luminance(DARK_PAPER));
  return Array.from({ length: COUNT }, (_, index) => {
    const part = index / (COUNT - 1);
    const colour = nights[Math.round(from + part * (COUNT - 1 - from))];
    return mixed(DARK_PAPER, colour, Math.min(1, part / DAWN));
  });
}

/** From less (blue) over nothing (the paper) to more (brown): for differences. */
export function differenceTable(dark: boolean): Rgb[] {
  const paper: Rgb = dark ? DARK_PAPER : [255, 255, 255];
  const [less, more]: Rgb[] = dark
    ? [
        [122, 184, 255],
        [255, 176, 92],
      ]
    : [
        [16, 66, 140],
        [140, 62, 8],
      ];
  return Array.from({ length: COUNT }, (_, index) => {
    const part = (2 * index) / (COUNT - 1) - 1;
    return mixed(paper, part < 0 ? less : more, Math.abs(part));
  });
}

function mixed(from: Rgb, to: Rgb, part: number): Rgb {
  return from.map((channel, at) => Math.round(channel + (to[at] - channel) * part)) as unknown as Rgb;
}

/** Relative luminance (WCAG 2). */
export function luminance([r, g, b]: Rgb): number {
  const linear = (channel: number): number => {
    const value = channel / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

export function contrast(one: Rgb, other: Rgb): number {
  const [low, high] = [luminance(one), luminance(other)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

export function css([r, g, b]: Rgb): string {
  return `rgb(${r} ${g} ${b})`;
}

/** Only pure black and white reach a contrast of 4.5 on every colour there is. */
const BLACK: Rgb = [0, 0, 0];
const WHITE: Rgb = [255, 255, 255];

/** Ink that can be read on a colour. */
export function inkOn(colour: Rgb): Rgb {
  return contrast(colour, BLACK) >= contrast(colour, WHITE) ? BLACK : WHITE;
}

export interface Palette {
  dark: boolean;
  colours: Rgb[];
  /** The table as CSS, and the ink on each colour. */
  fills: string[];
  inks: string[];
}

export function palette(dark: boolean, table = colourTable): Palette {
  const colours = table(dark);
  return { dark, colours, fills: colours.map(css), inks: colours.map((colour) => css(inkOn(colour))) };
}
