// Rules that mark whatever is above some value of its row. Codes are ordered as their values are, so in a coded row
// the comparison is made for eight codes only; every other code is known to be above or below them.

import { MISSING } from "../document/codes";
import type { CodedRow, KeyCounts, RowFacts, SinkRule } from "./rule";

export abstract class ValueRule implements SinkRule {
  abstract readonly name: string;
  abstract readonly needsDeviation: boolean;

  abstract describe(): string;
  abstract problem(keys: KeyCounts): string | null;
  /** False for NaN; must not turn false again as the value grows. */
  abstract isSink(value: number, facts: RowFacts): boolean;
  abstract cut(facts: RowFacts): number | null;

  mark(row: Float64Array, facts: RowFacts, out: Uint8Array): void {
    for (let i = 0; i < row.length; i++) out[i] = this.isSink(row[i], facts) ? 1 : 0;
  }

  count(row: CodedRow, facts: RowFacts, held: Uint32Array, at: number): number {
    const lowest = this.lowestSink(row.table, facts);
    return lowest === MISSING ? 0 : tally(row.codes, row.from, row.positions, lowest, held, at);
  }

  /** The lowest code that is a sink, `MISSING` where none is. */
  private lowestSink(table: Float64Array, facts: RowFacts): number {
    let low = 0;
    let high = MISSING;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.isSink(table[middle], facts)) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function tally(
  codes: Uint8Array,
  from: number,
  positions: number,
  lowest: number,
  held: Uint32Array,
  at: number,
): number {
  let found = 0;
  for (let i = 0; i < positions; i++) {
    const code = codes[from + i];
    if (code >= lowest && code !== MISSING) {
      held[at + i]++;
      found++;
    }
  }
  return found;
}
