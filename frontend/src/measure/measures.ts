// Norms of keys and values and the entropy of queries, where they were recorded: of a token, of a head, of a step.

import { type CodedArray, MEASURES, type Measure, type Sample } from "../document/sample";
import { breath } from "./sweep";

export { MEASURES, type Measure };

export const MEASURE_LABELS: Record<Measure, string> = {
  key_norm: "norm of the keys",
  value_norm: "norm of the values",
  entropy: "entropy of attention, in nats",
};

/** Less is not told apart from it (`norm_scale` in packing.py). */
export const LEAST = Math.fround(1e-3);

/** Milliseconds between two redraws while a curve grows. */
const PACE = 140;

export class Measured {
  private readonly curves = new Map<string, Float64Array>();
  private stopped = false;
  /** Goes up whenever a curve has grown. */
  revision = 0;

  constructor(
    private readonly sample: Sample,
    private readonly changed: () => void,
    private readonly failed: (error: Error) => void,
  ) {}

  get names(): Measure[] {
    return MEASURES.filter((name) => this.sample.measures[name] !== undefined);
  }

  /** Mean over the positions of every layer and head of a step; NaN where it is not there (yet). */
  byRow(name: Measure, step: number): Float64Array {
    const { layers, heads } = this.sample.spec;
    return Float64Array.from({ length: layers * heads }, (_, row) => this.mean(name, step, [row], null));
  }

  /** At a position, averaged over rows (layer x head); NaN where it is not there (yet). */
  at(name: Measure, step: number, rows: readonly number[], position: number): number {
    return this.mean(name, step, rows, position);
  }

  /** Mean over positions and rows at every step. It grows while steps are read. */
  curve(name: Measure, key: string, rows: readonly number[]): Float64Array {
    const known = this.curves.get(`${name}/${key}`);
    if (known) return known;
    const values = new Float64Array(this.sample.spec.steps).fill(NaN);
    this.curves.set(`${name}/${key}`, values);
    this.fill(name, rows, values).catch((error: Error) => {
      this.curves.delete(`${name}/${key}`);
      this.failed(error);
    });
    return values;
  }

  stop(): void {
    this.stopped = true;
  }

  private async fill(name: Measure, rows: readonly number[], values: Float64Array): Promise<void> {
    const array = this.sample.measures[name]!;
    let told = performance.now();
    for (let step = 0; step < values.length && !this.stopped; step++) {
      if (!array.bytes.peek(step)) await array.bytes.load(step);
      values[step] = this.mean(name, step, rows, null);
      if (performance.now() - told < PACE) continue;
      this.tell();
      await breath();
      told = performance.now();
    }
    this.tell();
  }

  private tell(): void {
    this.revision++;
    this.changed();
  }

  private mean(name: Measure, step: number, rows: readonly number[], position: number | null): number {
    const array = this.sample.measures[name];
    const codes = array?.bytes.peek(step);
    if (!array || !codes) {
      array?.bytes.load(step).then(this.changed, this.failed);
      return NaN;
    }
    const { positions } = this.sample.spec;
    let sum = 0;
    let count = 0;
    for (const row of rows) {
      const from = this.rowOf(array, row) * positions;
      const [first, last] = position === null ? [0, positions] : [position, position + 1];
      for (let at = first; at < last; at++) {
        const value = array.table[codes[from + at]];
        if (value !== value) continue;
        sum += value;
        count++;
      }
    }
    return count > 0 ? sum / count : NaN;
  }

  /** Several heads may share a key. */
  private rowOf({ rows }: CodedArray, row: number): number {
    const { layers, heads } = this.sample.spec;
    const held = rows / layers;
    return Math.floor(row / heads) * held + Math.floor(((row % heads) * held) / heads);
  }
}
