// One sample as a reader looks at it: keeps the maps that were worked out, and works out those that are asked for.

import type { Sample } from "../document/sample";
import { ALL } from "../sinks/groups";
import type { SinkRule } from "../sinks/rule";
import { keyCounts, keysPerStep } from "./key_counts";
import { Measured } from "./measures";
import { MeanMap, SinkCounts } from "./overview";
import { FactStore } from "./row_facts";
import { type Selection, chosenRows, selectionKey } from "./selection";
import { type StepRows, loadRows, peekRows } from "./step_rows";
import { Sweep } from "./sweep";

/** Bytes of maps of either kind that are kept, and how many at most. */
const BUDGET = 96 * 2 ** 20;
const KEPT_MEANS = 24;
const KEPT_COUNTS = 6;

/** Keeps what was used last. */
class Kept<T> {
  private readonly entries = new Map<string, T>();

  constructor(private readonly most: number) {}

  get(key: string, make: () => T): T {
    const entry = this.entries.get(key) ?? make();
    this.entries.delete(key);
    this.entries.set(key, entry);
    for (const oldest of this.entries.keys()) {
      if (this.entries.size <= this.most) break;
      this.entries.delete(oldest);
    }
    return entry;
  }
}

export interface Overview {
  mean: MeanMap;
  /** Null where the rule cannot fire. */
  counts: SinkCounts | null;
}

export class Model {
  private readonly means: Kept<MeanMap>;
  private readonly counts: Kept<SinkCounts>;
  private readonly keys = new Map<string, Int32Array>();
  private readonly facts: FactStore;
  readonly measures: Measured;
  private sweep: { key: string; job: Sweep } | null = null;
  private readonly peaks = new Map<string, number>();
  /** What the highest is sought of, over all steps. */
  private climb: { key: string; job: Sweep } | null = null;

  constructor(
    readonly sample: Sample,
    private readonly changed: () => void,
    private readonly failed: (error: Error) => void,
  ) {
    this.facts = new FactStore(sample);
    this.measures = new Measured(sample, changed, failed);
    const { steps, positions } = sample.spec;
    const room = Math.floor(BUDGET / (8 * steps * positions));
    this.means = new Kept(Math.min(KEPT_MEANS, Math.max(2, room)));
    this.counts = new Kept(Math.min(KEPT_COUNTS, Math.max(2, room)));
  }

  keysOf(group: string): Int32Array {
    const known = this.keys.get(group) ?? keysPerStep(this.sample, group);
    this.keys.set(group, known);
    return known;
  }

  /** Why the rule can do nothing here, in one line, or null. */
  refusal(rule: SinkRule, group: string): string | null {
    const counts = keyCounts(this.keysOf(group), group);
    return typeof counts === "string" ? counts : rule.problem(counts);
  }

  /** The rows of a step, or null while they are being fetched. */
  rows(group: string, step: number): StepRows | null {
    const here = peekRows(this.sample, group, step);
    if (!here) loadRows(this.sample, group, step).then(this.changed, this.failed);
    return here;
  }

  /** Mean and counts with the step in view filled, if its bytes are at hand; the others follow. */
  overview(selection: Selection, rule: SinkRule | null, step: number): Overview {
    const { steps, positions } = this.sample.spec;
    const key = selectionKey(selection);
    const mean = this.means.get(key, () => new MeanMap(steps, positions));
    const byRule = rule && `${key}/${rule.describe()}`;
    const counts = rule && this.counts.get(byRule!, () => new SinkCounts(steps, positions, rule));
    const chosen = chosenRows(this.sample, selection);
    if (!mean.done[step] || (counts && !counts.done[step])) {
      const rows = this.rows(selection.group, step);
      if (rows) this.visit(step, rows, chosen, { mean, counts });
    }
    this.complete(byRule ?? key, selection, chosen, { mean, counts }, step);
    return { mean, counts };
  }

  /** Sinks of every row of a step, for the layer x head map. */
  sinksByRow(rows: StepRows, step: number, rule: SinkRule): Float64Array {
    const found = new Float64Array(rows.rows).fill(NaN);
    const one = new SinkCounts(1, rows.positions, rule);
    const there = chosenRows(this.sample, { group: rows.codes ? ALL : "", layer: null, head: null });
    for (const row of there) found[row] = one.countRow(step, rows, row, this.facts, 0);
    return found;
  }

  /**
   * The highest of some numbers of a step: of the steps seen so far and, once `settled`, soon of all of them, so that
   * shades stay as they are from step to step. `here` is that of the step in view.
   */
  peak(
    key: string,
    here: number,
    settled: boolean,
    group: string,
    of: (step: number, rows: StepRows) => number,
  ): number {
    const raise = (value: number): void => void this.peaks.set(key, Math.max(this.peaks.get(key) ?? 0, value));
    raise(here);
    if (settled && this.climb?.key !== key) {
      this.climb?.job.stop();
      const job = new Sweep({
        sample: this.sample,
        group,
        from: 0,
        needs: () => true,
        visit: (step, rows) => raise(of(step, rows)),
        progress: () => undefined,
        finished: this.changed,
        failed: (error) => {
          this.climb = null;
          this.failed(error);
        },
      });
      this.climb = { key, job };
    }
    return this.peaks.get(key)!;
  }

  /** Ends the work under way, when the sample leaves the page. */
  stop(): void {
    this.sweep?.job.stop();
    this.sweep = null;
    this.climb?.job.stop();
    this.climb = null;
    this.measures.stop();
  }

  private complete(key: string, selection: Selection, chosen: number[], maps: Overview, step: number): void {
    const { mean, counts } = maps;
    if (this.sweep?.key === key) return;
    this.sweep?.job.stop();
    this.sweep = null;
    if (mean.left === 0 && (counts?.left ?? 0) === 0) return;
    const job = new Sweep({
      sample: this.sample,
      group: selection.group,
      from: step,
      needs: (at) => !mean.done[at] || (counts !== null && !counts.done[at]),
      visit: (at, rows) => this.visit(at, rows, chosen, maps),
      progress: this.changed,
      finished: () => {
        this.sweep = null;
        this.changed();
      },
      failed: (error) => {
        // Begun anew when it is asked for again.
        this.sweep = null;
        this.failed(error);
      },
    });
    this.sweep = { key, job };
  }

  private visit(step: number, rows: StepRows, chosen: readonly number[], { mean, counts }: Overview): void {
    mean.fill(step, rows, chosen);
    counts?.fill(step, rows, chosen, this.facts);
  }
}
