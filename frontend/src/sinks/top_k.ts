// The k existing keys that receive most, ties going to the lower position. A ranking, not evidence of sinks.

import { MISSING } from "../document/codes";
import { floatText } from "./python_numbers";
import type { CodedRow, KeyCounts, RowFacts, SinkRule } from "./rule";

const seen = new Uint32Array(256);

export class TopK implements SinkRule {
  readonly name = "top-k";
  readonly needsDeviation = false;

  constructor(readonly k: number) {}

  describe(): string {
    return `top-k (k ${this.k})`;
  }

  problem(keys: KeyCounts): string | null {
    if (!Number.isInteger(this.k) || this.k < 1) {
      return `k of rule 'top-k' must be a whole number of at least 1, got ${countText(this.k)}`;
    }
    if (this.k <= keys.fewest) return null;
    return `top-k with k ${this.k} needs as many keys in every row, one has ${keys.fewest}: choose a smaller k`;
  }

  mark(row: Float64Array, facts: RowFacts, out: Uint8Array): void {
    out.fill(0);
    if (facts.keys === 0) return;
    const ranked = row.filter((value) => !Number.isNaN(value)).sort();
    const cut = ranked[Math.max(0, ranked.length - this.k)];
    let room = this.k - ranked.reduce((above, value) => above + (value > cut ? 1 : 0), 0);
    for (let i = 0; i < row.length; i++) {
      if (row[i] > cut) out[i] = 1;
      else if (row[i] === cut && room-- > 0) out[i] = 1;
    }
  }

  count(row: CodedRow, facts: RowFacts, held: Uint32Array, at: number): number {
    if (facts.keys === 0) return 0;
    const { codes, from, positions } = row;
    const { cut, above } = cutCode(codes, from, positions, this.k);
    let room = this.k - above;
    let found = 0;
    for (let i = 0; i < positions; i++) {
      const code = codes[from + i];
      if (code === MISSING || code < cut || (code === cut && room-- <= 0)) continue;
      held[at + i]++;
      found++;
    }
    return found;
  }

  cut(): number | null {
    return null;
  }
}

/** The code of the k-th highest key, and how many keys are above it. */
function cutCode(codes: Uint8Array, from: number, positions: number, k: number): { cut: number; above: number } {
  seen.fill(0);
  for (let i = 0; i < positions; i++) seen[codes[from + i]]++;
  let above = 0;
  for (let code = MISSING - 1; code > 0; code--) {
    if (above + seen[code] >= k) return { cut: code, above };
    above += seen[code];
  }
  return { cut: 0, above };
}

/** Python shows a whole number that was typed without a dot. */
export function countText(k: number): string {
  return Number.isInteger(k) ? String(k) : floatText(k);
}
