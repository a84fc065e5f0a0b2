// Received attention is kept as one byte a number: 0 is nothing, 255 no key, between them the logarithm.

import type { LogEncoding } from "./types";

export const ZERO = 0;
export const MISSING = 255;
/**
 * The value of every code. Rounded to single precision, so that sums of equal values are exact in double precision
 * and equal attention everywhere leaves no sink at epsilon 0, as in Python.
 */
export function lookupTable(encoding: LogEncoding): Float64Array {
  // Codes that are not in use stand above all others, so that the table rises to its end.
  const table = new Float64Array(256).fill(Infinity);
  table[ZERO] = 0;
  table[MISSING] = NaN;
  const steps = Math.max(1, encoding.codes - 1);
  for (let code = 1; code <= encoding.codes; code++) {
    const value = encoding.low * Math.pow(encoding.high / encoding.low, (code - 1) / steps);
    table[code] = Math.min(encoding.most ?? Infinity, Math.fround(value));
  }
  return table;
}
