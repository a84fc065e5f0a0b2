// A key receives more than a fixed share of all attention (0.3 in arXiv 2410.10781).

import { general, floatText } from "./python_numbers";
import { ValueRule } from "./value_rule";

export class Threshold extends ValueRule {
  readonly name = "threshold";
  readonly needsDeviation = false;

  constructor(readonly value: number) {
    super();
  }

  describe(): string {
    return `threshold (value ${general(this.value)})`;
  }

  problem(): string | null {
    if (this.value >= 0 && this.value < 1) return null;
    const got = floatText(this.value);
    return `value of rule 'threshold' is a share of attention, 0 <= value < 1, got ${got}`;
  }

  isSink(value: number): boolean {
    return value > this.value;
  }

  cut(): number | null {
    return this.value;
  }
}
