// A key receives more than the mean and k population standard deviations over the existing keys.

import { general, floatText } from "./python_numbers";
import type { KeyCounts, RowFacts } from "./rule";
import { ValueRule } from "./value_rule";

export class ZScore extends ValueRule {
  readonly name = "zscore";
  readonly needsDeviation = true;

  constructor(readonly k: number) {
    super();
  }

  describe(): string {
    return `zscore (k ${general(this.k)})`;
  }

  problem(keys: KeyCounts): string | null {
    if (!Number.isFinite(this.k) || this.k < 0) {
      return `k of rule 'zscore' must be a finite number of at least 0, got ${floatText(this.k)}`;
    }
    const largest = Math.sqrt(keys.most - 1);
    if (this.k < largest) return null;
    return (
      `zscore with k ${general(this.k)} can never fire, the largest z-score among ${keys.most} keys is ` +
      `sqrt(${keys.most - 1}) = ${general(largest, 3)}: choose a smaller k`
    );
  }

  isSink(value: number, facts: RowFacts): boolean {
    return value > facts.total / facts.keys + this.k * facts.deviation;
  }

  cut(facts: RowFacts): number | null {
    return facts.keys > 0 ? facts.total / facts.keys + this.k * facts.deviation : null;
  }
}
