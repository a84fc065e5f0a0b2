// Sums and deviations of rows. Those of coded rows are kept, so that another epsilon need not add up all rows again.

import type { Sample } from "../document/sample";
import type { RowFacts } from "../sinks/rule";
import type { StepRows } from "./step_rows";

export function factsOf(row: Float64Array): RowFacts {
  let total = 0;
  let keys = 0;
  for (let i = 0; i < row.length; i++) {
    if (row[i] !== row[i]) continue;
    total += row[i];
    keys++;
  }
  return { keys, total, deviation: deviationOf(row, total / keys, keys) };
}

function deviationOf(row: Float64Array, mean: number, keys: number): number {
  let squares = 0;
  for (let i = 0; i < row.length; i++) if (row[i] === row[i]) squares += (row[i] - mean) ** 2;
  return Math.sqrt(squares / keys);
}

/** Facts of the rows of `sample.received`, worked out once for every step; NaN where that was not yet done. */
export class FactStore {
  private readonly keys: Int32Array;
  private readonly totals: Float64Array;
  private readonly deviations: Float64Array;
  private readonly row: Float64Array;

  constructor(private readonly sample: Sample) {
    const { steps, positions } = sample.spec;
    this.keys = new Int32Array(steps * sample.received.rows);
    this.totals = new Float64Array(this.keys.length).fill(NaN);
    this.deviations = new Float64Array(this.totals.length).fill(NaN);
    this.row = new Float64Array(positions);
  }

  get(rows: StepRows, step: number, row: number, withDeviation: boolean, out: RowFacts): void {
    const at = step * this.sample.received.rows + row;
    const { codes, table, positions } = rows;
    if (Number.isNaN(this.totals[at])) this.addUp(at, codes!, row * positions, positions, table);
    const keys = this.keys[at];
    if (withDeviation && Number.isNaN(this.deviations[at])) {
      rows.read(row, this.row);
      this.deviations[at] = deviationOf(this.row, this.totals[at] / keys, keys);
    }
    out.keys = keys;
    out.total = this.totals[at];
    out.deviation = this.deviations[at];
  }

  private addUp(at: number, codes: Uint8Array, from: number, positions: number, table: Float64Array): void {
    let total = 0;
    let keys = 0;
    for (let i = 0; i < positions; i++) {
      const value = table[codes[from + i]];
      if (value !== value) continue;
      total += value;
      keys++;
    }
    this.totals[at] = total;
    this.keys[at] = keys;
  }
}
