// Paints a matrix as one small picture, a cell a pixel. Where there are more cells than pixels a pixel has the highest of
// its cells, so that a lone sink is never lost.

import type { Palette } from "./colours";
import type { Shades } from "./shading";

export interface Matrix {
  columns: number;
  rows: number;
  /** NaN is no cell: it stays empty, and the hatching behind it shows. */
  value(column: number, row: number): number;
}

export function paint(
  canvas: HTMLCanvasElement,
  matrix: Matrix,
  shades: Shades,
  colours: Palette,
  room: [number, number],
): void {
  const width = Math.max(1, Math.min(matrix.columns, Math.floor(room[0])));
  const height = Math.max(1, Math.min(matrix.rows, Math.floor(room[1])));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d")!;
  const picture = context.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const index = shades.index(pooled(matrix, x, y, width, height));
      if (index >= 0) picture.data.set([...colours.colours[index], 255], 4 * (y * width + x));
    }
  }
  context.putImageData(picture, 0, 0);
}

function pooled(matrix: Matrix, x: number, y: number, width: number, height: number): number {
  if (width === matrix.columns && height === matrix.rows) return matrix.value(x, y);
  const lastColumn = Math.max(x, Math.ceil(((x + 1) * matrix.columns) / width) - 1);
  const lastRow = Math.max(y, Math.ceil(((y + 1) * matrix.rows) / height) - 1);
  let most = NaN;
  for (let column = Math.floor((x * matrix.columns) / width); column <= lastColumn; column++) {
    for (let row = Math.floor((y * matrix.rows) / height); row <= lastRow; row++) {
      const value = matrix.value(column, row);
      if (!(value <= most)) most = Number.isNaN(value) ? most : value;
    }
  }
  return most;
}
