import { expect, it } from "vitest";
import { palette } from "../src/charts/colours";
import { paint } from "../src/charts/raster";
import { shades } from "../src/charts/shading";

/** As much of a canvas as painting needs. */
function canvas(): HTMLCanvasElement & { painted: Uint8ClampedArray } {
  const fake = {
    width: 0,
    height: 0,
    painted: new Uint8ClampedArray(),
    getContext: () => ({
      createImageData: (width: number, height: number) => ({ data: new Uint8ClampedArray(4 * width * height) }),
      putImageData: (picture: ImageData) => (fake.painted = picture.data as Uint8ClampedArray<ArrayBuffer>),
    }),
  };
  return fake as unknown as HTMLCanvasElement & { painted: Uint8ClampedArray };
}

const COLOURS = palette(false);

it("paints a cell a pixel and leaves what is missing empty", () => {
  const target = canvas();
  const values = [0, 1, NaN, 0.5, 0, 1];
  paint(
    target,
    { columns: 2, rows: 3, value: (x, y) => values[y * 2 + x] },
    shades("linear", 1, 1),
    COLOURS,
    [100, 100],
  );
  expect([target.width, target.height]).toEqual([2, 3]);
  expect([...target.painted.subarray(4, 7)]).toEqual([...COLOURS.colours[255]]);
  expect(target.painted[4 * 2 + 3]).toBe(0);
});

it("never loses a lone high cell when there is no room for all", () => {
  const target = canvas();
  const value = (x: number, y: number): number => (x === 613 && y === 77 ? 1 : 0);
  paint(target, { columns: 1009, rows: 101, value }, shades("linear", 1, 1), COLOURS, [50, 20]);
  const pixels = Array.from({ length: 50 * 20 }, (_, at) => target.painted[4 * at]);
  const high = pixels.filter((red) => red === COLOURS.colours[255][0]);
  expect(high.length).toBeGreaterThanOrEqual(1);
  expect(high.length).toBeLessThanOrEqual(4);
});
