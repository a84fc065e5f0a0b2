// The first k existing keys, whatever they receive: the static sink of autoregressive models.

import { MISSING } from "../document/codes";
import type { CodedRow, KeyCounts, RowFacts, SinkRule } from "./rule";
import { countText } from "./top_k";

export class First implements SinkRule {
  readonly name = "first";
  readonly needsDeviation = false;

  constructor(readonly k: number) {}

  describe(): string {
    return `first (k ${this.k})`;
  }

  problem(keys: KeyCounts): string | null {
    if (!Number.isInteger(this.k) || this.k < 1) {
      return `k of rule 'first' must be a whole number of at least 1, got ${countText(this.k)}`;
    }
    if (this.k <= keys.fewest) return null;
    return `rule 'first' with k ${this.k} needs as many keys in every row, one has ${keys.fewest}: choose a smaller k`;
  }

  mark(row: Float64Array, _facts: RowFacts, out: Uint8Array): void {
    let room = this.k;
    for (let i = 0; i < row.length; i++) out[i] = !Number.isNaN(row[i]) && room-- > 0 ? 1 : 0;
  }

  count(row: CodedRow, _facts: RowFacts, held: Uint32Array, at: number): number {
    let found = 0;
    for (let i = 0; i < row.positions && found < this.k; i++) {
      if (row.codes[row.from + i] === MISSING) continue;
      held[at + i]++;
      found++;
    }
    return found;
  }

  cut(): number | null {
    return null;
  }
}
