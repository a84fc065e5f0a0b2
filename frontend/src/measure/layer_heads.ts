// The layer x head map of one step.

import { MISSING } from "../document/codes";
import { MEASURE_LABELS, MEASURES } from "./measures";
import type { StepRows } from "./step_rows";

export const METRICS = ["strongest", "sinks", "pinned", ...MEASURES] as const;
export type Metric = (typeof METRICS)[number];

export const METRIC_LABELS: Record<Metric, string> = {
  strongest: "score of the strongest key",
  sinks: "number of sinks",
  pinned: "score of the pinned token",
  ...MEASURE_LABELS,
};

/** Received attention of the strongest key of every row; NaN without keys, as in a head that the layer lacks. */
export function strongest(rows: StepRows): Float64Array {
  const { positions, codes, table } = rows;
  const most = new Float64Array(rows.rows).fill(NaN);
  if (rows.keys === 0) return most;
  const row = new Float64Array(positions);
  for (let index = 0; index < rows.rows; index++) {
    if (codes) {
      most[index] = table[highestCode(codes, index * positions, positions)];
      continue;
    }
    rows.read(index, row);
    most[index] = row.reduce((high, value) => (value > high ? value : high), 0);
  }
  return most;
}

function highestCode(codes: Uint8Array, from: number, positions: number): number {
  let most = -1;
  for (let i = 0; i < positions; i++) {
    const code = codes[from + i];
    if (code > most && code !== MISSING) most = code;
  }
  return most < 0 ? MISSING : most;
}

/** Received attention of one position in every row. */
export function atPosition(rows: StepRows, position: number): Float64Array {
  const values = new Float64Array(rows.rows);
  const row = new Float64Array(rows.positions);
  for (let index = 0; index < rows.rows; index++) {
    rows.read(index, row);
    values[index] = row[position];
  }
  return values;
}
