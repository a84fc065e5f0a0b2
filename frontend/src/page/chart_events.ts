// What charts ask of the pane they are in.

import type { Format } from "../charts/saving";

export interface ChartEvents {
  step(step: number): void;
  pin(position: number): void;
  /** A cell is pointed at (step null: no longer), at this place of the window. */
  cell(step: number | null, position: number, x: number, y: number): void;
  lines(lines: string[] | null, x: number, y: number): void;
  /** Saves a chart with its caption and colour bar; `step` where it is not the one in view. */
  save(
    title: string,
    name: string,
    drawing: SVGSVGElement,
    bar: SVGSVGElement | null,
    format: Format,
    step?: number,
  ): void;
  /** Colour behind a saved chart. */
  paper(): string;
}
