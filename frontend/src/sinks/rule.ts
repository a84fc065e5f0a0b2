// What a sink rule is. A rule looks at one row (one step, layer and head) and marks positions; it says beforehand,
// in the words of the Python package, when it never will.

export interface KeyCounts {
  fewest: number;
  most: number;
}

/** What the rules need to know of a row. */
export interface RowFacts {
  keys: number;
  total: number;
  /** Population standard deviation over the existing keys; only where the rule asks for it. */
  deviation: number;
}

/** A row of codes inside a longer array. */
export interface CodedRow {
  codes: Uint8Array;
  from: number;
  positions: number;
  table: Float64Array;
}

export interface SinkRule {
  readonly name: string;
  readonly needsDeviation: boolean;
  /** The rule in a few words, for captions. */
  describe(): string;
  /** Why the settings are no good by themselves, or with so many keys. */
  problem(keys: KeyCounts): string | null;
  /** Writes 1 at sinks and 0 elsewhere. `row` is NaN where no key exists. */
  mark(row: Float64Array, facts: RowFacts, out: Uint8Array): void;
  /** Adds 1 to `held`, from `at` on, at the sinks of the row; gives their number. */
  count(row: CodedRow, facts: RowFacts, held: Uint32Array, at: number): number;
  /** The value above which a key is a sink in this row, where there is such a value. */
  cut(facts: RowFacts): number | null;
}
