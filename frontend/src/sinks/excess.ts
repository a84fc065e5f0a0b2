// arXiv 2510.15731, Eq. 3: a key's score exceeds the mean score of all other keys by more than epsilon.

import { general, floatText } from "./python_numbers";
import type { KeyCounts, RowFacts } from "./rule";
import { type Scale, fullScore } from "./scales";
import { ValueRule } from "./value_rule";

export class Excess extends ValueRule {
  readonly name = "excess";
  readonly needsDeviation = false;

  constructor(
    readonly epsilon: number,
    readonly scale: Scale,
  ) {
    super();
  }

  describe(): string {
    return `excess (epsilon ${general(this.epsilon)}, scale ${this.scale})`;
  }

  problem(keys: KeyCounts): string | null {
    if (!Number.isFinite(this.epsilon) || this.epsilon < 0) {
      return `epsilon must be a finite number of at least 0, got ${floatText(this.epsilon)}`;
    }
    const limit = { mean: 1, percent: 100, sum: Infinity }[this.scale];
    if (this.epsilon >= limit) return this.never(`scores differ by at most ${general(limit)}`);
    if (this.scale === "sum" && this.epsilon >= keys.most) {
      return this.never(`with ${keys.most} keys scores differ by at most ${keys.most}`);
    }
    return null;
  }

  isSink(value: number, facts: RowFacts): boolean {
    const others = facts.keys - 1;
    if (others < 1) return false;
    return fullScore(this.scale, facts.keys) * ((facts.keys * value - facts.total) / others) > this.epsilon;
  }

  cut(facts: RowFacts): number | null {
    if (facts.keys < 2) return null;
    const margin = (this.epsilon * (facts.keys - 1)) / fullScore(this.scale, facts.keys);
    return (facts.total + margin) / facts.keys;
  }

  private never(why: string): string {
    const rule = `excess with epsilon ${general(this.epsilon)} on scale '${this.scale}'`;
    return `${rule} can never fire, ${why}: choose a smaller epsilon or another scale`;
  }
}
