import { describe, expect, it } from "vitest";
import { MISSING, lookupTable } from "../src/document/codes";
import { factsOf } from "../src/measure/row_facts";
import { Excess } from "../src/sinks/excess";
import { First } from "../src/sinks/first";
import type { SinkRule } from "../src/sinks/rule";
import { Threshold } from "../src/sinks/threshold";
import { TopK } from "../src/sinks/top_k";
import { ZScore } from "../src/sinks/z_score";
import { ENCODING, random } from "./rows";

const TABLE = lookupTable(ENCODING);

function marks(rule: SinkRule, row: number[]): number[] {
  const values = Float64Array.from(row);
  const out = new Uint8Array(row.length);
  rule.mark(values, factsOf(values), out);
  return [...out.keys()].filter((at) => out[at]);
}

describe("what the rules mark", () => {
  it("excess compares a key with the mean of the others", () => {
    // With 4 keys on scale sum the scores are 2.8, 0.4, 0.4, 0.4: the first exceeds the others by 2.4.
    const row = [0.7, 0.1, 0.1, 0.1];
    expect(marks(new Excess(2.3, "sum"), row)).toEqual([0]);
    expect(marks(new Excess(2.5, "sum"), row)).toEqual([]);
    expect(marks(new Excess(59, "percent"), row)).toEqual([0]);
    expect(marks(new Excess(61, "percent"), row)).toEqual([]);
    expect(marks(new Excess(0.59, "mean"), row)).toEqual([0]);
  });

  it("excess leaves missing keys out of the mean, and a key alone is no sink", () => {
    expect(marks(new Excess(0.5, "sum"), [NaN, 0.8, 0.2, NaN])).toEqual([1]);
    expect(marks(new Excess(0, "sum"), [NaN, 1, NaN])).toEqual([]);
  });

  it("equal attention everywhere leaves no sink at epsilon 0", () => {
    for (const code of [1, 17, 100, 254]) {
      for (const keys of [2, 3, 7, 165]) expect(marks(new Excess(0, "sum"), Array(keys).fill(TABLE[code]))).toEqual([]);
    }
  });

  it("threshold, z-score, top-k and first", () => {
    const row = [0.1, NaN, 0.4, 0.4, 0.1];
    expect(marks(new Threshold(0.3), row)).toEqual([2, 3]);
    expect(marks(new Threshold(0.4), row)).toEqual([]);
    expect(marks(new ZScore(0.9), row)).toEqual([2, 3]);
    expect(marks(new ZScore(1.1), row)).toEqual([]);
    expect(marks(new TopK(1), row)).toEqual([2]);
    expect(marks(new TopK(3), row)).toEqual([0, 2, 3]);
    expect(marks(new First(2), row)).toEqual([0, 2]);
  });
});

describe("coded rows", () => {
  const rules: SinkRule[] = [
    new Excess(0, "sum"),
    new Excess(1.5, "sum"),
    new Excess(4, "percent"),
    new Excess(0.02, "mean"),
    new Threshold(0.01),
    new ZScore(0.5),
    new ZScore(2),
    new TopK(1),
    new TopK(4),
    new First(3),
  ];

  it("have the sinks of their values, by every rule", () => {
    const next = random(7);
    for (let trial = 0; trial < 60; trial++) {
      const codes = Uint8Array.from({ length: 26 }, () =>
        next() < 0.1 ? MISSING : Math.floor(next() * (next() < 0.5 ? 255 : 6)),
      );
      const [from, positions, at] = [5, 13, 3];
      const row = Float64Array.from(codes.subarray(from, from + positions), (code) => TABLE[code]);
      for (const rule of rules) {
        const facts = factsOf(row);
        const held = new Uint32Array(20);
        const found = rule.count({ codes, from, positions, table: TABLE }, facts, held, at);
        const out = new Uint8Array(positions);
        rule.mark(row, facts, out);
        expect([...held.subarray(at, at + positions)], rule.describe()).toEqual([...out]);
        expect(found).toBe(out.reduce((a, b) => a + b, 0));
        expect(held.reduce((a, b) => a + b, 0)).toBe(found);
      }
    }
  });

  it("have a cut that parts sinks from others", () => {
    const row = Float64Array.from([0.5, 0.2, 0.2, 0.05, 0.05]);
    const facts = factsOf(row);
    for (const rule of [new Excess(1, "sum"), new Excess(30, "percent"), new Threshold(0.3), new ZScore(1.2)]) {
      const cut = rule.cut(facts)!;
      expect(rule.isSink(cut * (1 + 1e-9), facts)).toBe(true);
      expect(rule.isSink(cut * (1 - 1e-9), facts)).toBe(false);
    }
  });
});

describe("refusals read as in Python", () => {
  const keys = { fewest: 11, most: 33 };

  it.each([
    [new Excess(-1, "sum"), "epsilon must be a finite number of at least 0, got -1.0"],
    [new Excess(NaN, "sum"), "epsilon must be a finite number of at least 0, got nan"],
    [
      new Excess(3, "mean"),
      "excess with epsilon 3 on scale 'mean' can never fire, scores differ by at most 1: choose a smaller epsilon or another scale",
    ],
    [
      new Excess(33, "sum"),
      "excess with epsilon 33 on scale 'sum' can never fire, with 33 keys scores differ by at most 33: choose a smaller epsilon or another scale",
    ],
    [new Threshold(1), "value of rule 'threshold' is a share of attention, 0 <= value < 1, got 1.0"],
    [new TopK(1.5), "k of rule 'top-k' must be a whole number of at least 1, got 1.5"],
    [new TopK(12), "top-k with k 12 needs as many keys in every row, one has 11: choose a smaller k"],
    [new ZScore(-0.5), "k of rule 'zscore' must be a finite number of at least 0, got -0.5"],
    [
      new ZScore(6),
      "zscore with k 6 can never fire, the largest z-score among 33 keys is sqrt(32) = 5.66: choose a smaller k",
    ],
    [new First(0), "k of rule 'first' must be a whole number of at least 1, got 0"],
    [new First(12), "rule 'first' with k 12 needs as many keys in every row, one has 11: choose a smaller k"],
  ])("%#", (rule, text) => expect(rule.problem(keys)).toBe(text));

  it("what can fire is not refused", () => {
    const fine = [
      new Excess(32.9, "sum"),
      new Excess(99, "percent"),
      new Threshold(0),
      new TopK(11),
      new ZScore(5.6),
      new First(11),
    ];
    for (const rule of fine) expect(rule.problem(keys)).toBeNull();
  });
});
