// Marks on a painted map (rings, edges, ticks) as outlines. They are drawn on a canvas while the page is used, because
// there may be thousands, and become paths of an SVG when the chart is saved.

import { svg } from "../page/element";

export interface Stroke {
  d: string;
  colour: string;
  width: number;
  dash?: number[];
}

export function stroke(canvas: HTMLCanvasElement, size: [number, number], strokes: readonly Stroke[]): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(size[0] * ratio);
  canvas.height = Math.round(size[1] * ratio);
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  for (const one of strokes) {
    context.strokeStyle = one.colour;
    context.lineWidth = one.width;
    context.setLineDash(one.dash ?? []);
    context.stroke(new Path2D(one.d));
  }
}

export function strokePaths(strokes: readonly Stroke[]): SVGPathElement[] {
  return strokes.map((one) =>
    svg("path", {
      d: one.d,
      fill: "none",
      stroke: one.colour,
      "stroke-width": one.width,
      "stroke-dasharray": one.dash?.join(" "),
    }),
  );
}

export function circle(x: number, y: number, radius: number): string {
  const [at, r, across] = [`${fixed(x - radius)} ${fixed(y)}`, fixed(radius), fixed(2 * radius)];
  return `M${at}a${r} ${r} 0 1 0 ${across} 0a${r} ${r} 0 1 0 -${across} 0`;
}

export function segment(x1: number, y1: number, x2: number, y2: number): string {
  return `M${fixed(x1)} ${fixed(y1)}L${fixed(x2)} ${fixed(y2)}`;
}

export function box(x1: number, y1: number, x2: number, y2: number): string {
  return `M${fixed(x1)} ${fixed(y1)}H${fixed(x2)}V${fixed(y2)}H${fixed(x1)}Z`;
}

function fixed(value: number): string {
  return String(Math.round(100 * value) / 100);
}
