// What a selection looks like over all steps: the mean of its rows, and how many of its rows hold each position as a
// sink. Filled a step at a time, so that the step in view comes first and nothing blocks a frame.

import type { CodedRow, RowFacts, SinkRule } from "../sinks/rule";
import { type FactStore, factsOf } from "./row_facts";
import type { StepRows } from "./step_rows";

/** Received attention of every (step, position), averaged over the chosen rows; NaN without a key. */
export class MeanMap {
  readonly values: Float64Array;
  readonly done: Uint8Array;
  left: number;
  private readonly row: Float64Array;

  constructor(
    steps: number,
    readonly positions: number,
  ) {
    this.values = new Float64Array(steps * positions).fill(NaN);
    this.done = new Uint8Array(steps);
    this.left = steps;
    this.row = new Float64Array(positions);
  }

  at(step: number): Float64Array {
    return this.values.subarray(step * this.positions, (step + 1) * this.positions);
  }

  fill(step: number, rows: StepRows, chosen: readonly number[]): void {
    if (this.done[step]) return;
    const sums = this.at(step).fill(NaN);
    const { row } = this;
    // A key that only some rows have receives nothing in the others; one that none has is missing.
    for (const index of rows.keys > 0 ? chosen : []) {
      rows.read(index, row);
      for (let i = 0; i < row.length; i++) {
        if (row[i] === row[i]) sums[i] = (sums[i] === sums[i] ? sums[i] : 0) + row[i];
      }
    }
    for (let i = 0; i < sums.length; i++) sums[i] /= chosen.length;
    this.done[step] = 1;
    this.left--;
  }
}

/** How often the rule finds a sink: by (step, position) and by step. */
export class SinkCounts {
  /** (step, position): in how many of the chosen rows it is a sink. */
  readonly held: Uint32Array;
  /** (step): sinks in all chosen rows, and rows with at least one. */
  readonly sinks: Float64Array;
  readonly some: Float64Array;
  readonly done: Uint8Array;
  left: number;
  private readonly numbersOfRow: Float64Array;
  private readonly marks: Uint8Array;

  constructor(
    steps: number,
    readonly positions: number,
    readonly rule: SinkRule,
  ) {
    this.held = new Uint32Array(steps * positions);
    this.sinks = new Float64Array(steps).fill(NaN);
    this.some = new Float64Array(steps).fill(NaN);
    this.done = new Uint8Array(steps);
    this.left = steps;
    this.numbersOfRow = new Float64Array(positions);
    this.marks = new Uint8Array(positions);
  }

  fill(step: number, rows: StepRows, chosen: readonly number[], facts: FactStore): void {
    if (this.done[step]) return;
    this.sinks[step] = 0;
    this.some[step] = 0;
    for (const index of rows.keys > 0 ? chosen : []) {
      const found = this.countRow(step, rows, index, facts, step);
      this.sinks[step] += found;
      if (found > 0) this.some[step]++;
    }
    this.done[step] = 1;
    this.left--;
  }

  /** Counts the sinks of one row of a step, into the counts of step `into`. */
  countRow(step: number, rows: StepRows, index: number, facts: FactStore, into: number): number {
    if (!rows.codes) return this.numbers(into, rows, index);
    facts.get(rows, step, index, this.rule.needsDeviation, FACTS);
    const { positions } = this;
    const row: CodedRow = { codes: rows.codes, from: index * positions, positions, table: rows.table };
    return this.rule.count(row, FACTS, this.held, into * positions);
  }

  private numbers(step: number, rows: StepRows, index: number): number {
    rows.read(index, this.numbersOfRow);
    this.rule.mark(this.numbersOfRow, factsOf(this.numbersOfRow), this.marks);
    let found = 0;
    for (let i = 0; i < this.positions; i++) {
      if (!this.marks[i]) continue;
      this.held[step * this.positions + i]++;
      found++;
    }
    return found;
  }
}

/** One object for all rows: a million of them would keep the collector busy. */
const FACTS: RowFacts = { keys: 0, total: 0, deviation: NaN };
