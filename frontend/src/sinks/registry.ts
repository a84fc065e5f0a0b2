// Rules by name, each with the one number that a reader sets.

import { Excess } from "./excess";
import { First } from "./first";
import type { SinkRule } from "./rule";
import type { Scale } from "./scales";
import { Threshold } from "./threshold";
import { TopK } from "./top_k";
import { ZScore } from "./z_score";

export interface RuleKind {
  name: string;
  /** The parameter's name, in Python and in the address. */
  parameter: string;
  initial: number;
  least: number;
  /** Where a slider ends; typed numbers may go on. */
  most: number;
  step: number;
  make(value: number, scale: Scale): SinkRule;
}

export const RULES: readonly RuleKind[] = [
  {
    name: "excess",
    parameter: "epsilon",
    initial: 3,
    least: 0,
    most: 10,
    step: 0.1,
    make: (value, scale) => new Excess(value, scale),
  },
  {
    name: "threshold",
    parameter: "value",
    initial: 0.3,
    least: 0,
    most: 0.99,
    step: 0.01,
    make: (value) => new Threshold(value),
  },
  { name: "top-k", parameter: "k", initial: 1, least: 1, most: 10, step: 1, make: (value) => new TopK(value) },
  { name: "zscore", parameter: "k", initial: 3, least: 0, most: 10, step: 0.1, make: (value) => new ZScore(value) },
  { name: "first", parameter: "k", initial: 1, least: 1, most: 10, step: 1, make: (value) => new First(value) },
];

export function ruleKind(name: string): RuleKind {
  return RULES.find((kind) => kind.name === name) ?? RULES[0];
}
