// Saves a chart as it is on the page. Every chart gives one SVG; a PNG is that SVG, painted at twice its size.

import { svg } from "../page/element";
import { BAR } from "./colour_bar";
import { FONT, type ThemeColours } from "./theme_colours";

export const FORMATS = ["png", "svg"] as const;
export type Format = (typeof FORMATS)[number];

const PROPERTIES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "stroke-opacity",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
  "display",
  "visibility",
] as const;
const PAINTED_SCALE = 2;

/** A copy that looks the same without the page's stylesheet. The original has to be in the page. */
export function standalone(original: SVGSVGElement, background: string): SVGSVGElement {
  const copy = original.cloneNode(true) as SVGSVGElement;
  inline(original, copy);
  const { width, height } = original.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: background }));
  for (const cursor of copy.querySelectorAll(".cell-cursor, .cursor")) cursor.remove();
  return copy;
}

/** What a saved picture says of itself, under what it shows. */
export interface Caption {
  /** One thing each; long ones are broken. */
  lines: readonly string[];
  bar: SVGSVGElement | null;
  colours: ThemeColours;
}

const LEADING = 15;
const SIDE = 12;
/** Width of a letter at 11 pixels, on average. */
const LETTER = 6;

export function captioned(drawing: SVGSVGElement, { lines, bar, colours }: Caption): SVGSVGElement {
  const width = Math.max(BAR.width + 2 * SIDE, Number(drawing.getAttribute("width")));
  const told = lines.flatMap((line) => broken(line, Math.floor((width - 2 * SIDE) / LETTER)));
  const top = Number(drawing.getAttribute("height")) + 4;
  const under = top + (bar ? BAR.height + 6 : 0);
  const height = under + told.length * LEADING + 8;
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  root.append(svg("rect", { width: "100%", height: "100%", fill: colours.paper }), drawing);
  if (bar) {
    bar.setAttribute("y", String(top));
    root.append(bar);
  }
  told.forEach((line, index) => {
    const place = { x: SIDE, y: under + (index + 1) * LEADING - 3, class: "caption" };
    root.append(svg("text", { ...place, fill: colours.soft, "font-family": FONT, "font-size": "11px" }, line));
  });
  return root;
}

function broken(line: string, most: number): string[] {
  const lines = [""];
  for (const word of line.split(" ")) {
    const last = lines[lines.length - 1];
    if (last !== "" && last.length + 1 + word.length > most) lines.push(word);
    else lines[lines.length - 1] = last === "" ? word : `${last} ${word}`;
  }
  return lines;
}

export interface Place {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A painted map as a picture inside an SVG, over the hatching that shows where it has no cell. */
export function pixels(canvas: HTMLCanvasElement, place: Place, { absent, paper }: ThemeColours): SVGElement[] {
  const tile = { id: "absent", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)" };
  const stripes = svg("pattern", tile, svg("path", { d: "M0 0H3V6H0Z", fill: absent }));
  const image = svg("image", { ...place, preserveAspectRatio: "none", href: canvas.toDataURL("image/png") });
  image.style.setProperty("image-rendering", "pixelated");
  const ground = [paper, "url(#absent)"].map((fill) => svg("rect", { ...place, fill }));
  return [svg("defs", {}, stripes), ...ground, image];
}

function inline(from: Element, to: Element): void {
  const style = getComputedStyle(from);
  for (const property of PROPERTIES) to.setAttribute(property, style.getPropertyValue(property));
  to.removeAttribute("class");
  for (const name of ["cursor", "cell-cursor"]) if (from.classList.contains(name)) to.setAttribute("class", name);
  Array.from(from.children).forEach((child, index) => inline(child, to.children[index]));
}

export async function save(drawing: SVGSVGElement, name: string, format: Format): Promise<void> {
  const text = new XMLSerializer().serializeToString(drawing);
  const file = new Blob([text], { type: "image/svg+xml" });
  download(format === "svg" ? file : await painted(file, drawing), `${name}.${format}`);
}

async function painted(file: Blob, drawing: SVGSVGElement): Promise<Blob> {
  const address = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = PAINTED_SCALE * Number(drawing.getAttribute("width"));
    canvas.height = PAINTED_SCALE * Number(drawing.getAttribute("height"));
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) =>
      canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture could not be painted")))),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}

function download(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  // The browser has its own hold on the file by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A name for a file out of words that may hold anything. */
export function fileName(...words: string[]): string {
  return words
    .map((word) => word.replace(/[^A-Za-z0-9.]+/g, "-").replace(/^-+|-+$/g, ""))
    .filter(Boolean)
    .join("_");
}
