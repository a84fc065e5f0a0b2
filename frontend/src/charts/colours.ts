// The colour tables: evenly spaced in the lightness of OKLab, so that they read in grey and with any colour vision.
// Low values are near the paper and high ones far from it: on light paper a pale blue grows dark, on dark paper a dark
// blue grows light. The accent (orange) is never in the table, and sinks have an outline besides.

export type Rgb = readonly [number, number, number];

interface Stop {
  at: number;
  lightness: number;
  chroma: number;
  /** Degrees. */
  hue: number;
}

const LIGHT: readonly Stop[] = [
  { at: 0, lightness: 0.975, chroma: 0.008, hue: 230 },
  { at: 0.35, lightness: 0.8, chroma: 0.085, hue: 228 },
  { at: 0.7, lightness: 0.52, chroma: 0.13, hue: 256 },
  { at: 1, lightness: 0.26, chroma: 0.1, hue: 278 },
];

const DARK: readonly Stop[] = [
  { at: 0, lightness: 0.24, chroma: 0.02, hue: 262 },
  { at: 0.35, lightness: 0.46, chroma: 0.11, hue: 258 },
  { at: 0.7, lightness: 0.74, chroma: 0.1, hue: 222 },
  { at: 1, lightness: 0.965, chroma: 0.05, hue: 170 },
];

export function colourTable(dark: boolean): Rgb[] {
  const stops = dark ? DARK : LIGHT;
  const first = stops[0].lightness;
  const last = stops[stops.length - 1].lightness;
  return Array.from({ length: 256 }, (_, index) => {
    const lightness = first + ((last - first) * index) / 255;
    return oklch(lightness, ...chromaAndHue(stops, lightness));
  });
}

/** Chroma and hue at a lightness: straight between the stops. */
function chromaAndHue(stops: readonly Stop[], lightness: number): [number, number] {
  const falls = stops[0].lightness > stops[stops.length - 1].lightness;
  let index = 1;
  while (
    index < stops.length - 1 &&
    (falls ? lightness < stops[index].lightness : lightness > stops[index].lightness)
  ) {
    index++;
  }
  const [a, b] = [stops[index - 1], stops[index]];
  const part = (lightness - a.lightness) / (b.lightness - a.lightness);
  return [a.chroma + (b.chroma - a.chroma) * part, a.hue + (b.hue - a.hue) * part];
}

/** OKLCH (lightness 0 to 1, hue in degrees) in 8-bit sRGB; colours outside are cut off. */
export function oklch(lightness: number, chroma: number, hue: number): Rgb {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    gamma(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    gamma(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    gamma(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

function gamma(linear: number): number {
  const cut = Math.min(1, Math.max(0, linear));
  return Math.round(255 * (cut <= 0.0031308 ? 12.92 * cut : 1.055 * cut ** (1 / 2.4) - 0.055));
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

export function palette(dark: boolean): Palette {
  const colours = colourTable(dark);
  return { dark, colours, fills: colours.map(css), inks: colours.map((colour) => css(inkOn(colour))) };
}
