// What charts ask of the pane they are in.

export interface ChartEvents {
  step(step: number): void;
  pin(position: number): void;
  /** A cell is pointed at (step null: no longer), at this place of the window. */
  cell(step: number | null, position: number, x: number, y: number): void;
  lines(lines: string[] | null, x: number, y: number): void;
  /** Name of the file that a chart is saved in. */
  named(chart: string): string;
  /** Colour behind a saved chart. */
  paper(): string;
}
