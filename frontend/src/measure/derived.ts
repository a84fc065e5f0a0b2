// Everything the charts of a pane need over all steps, worked out anew only when something it depends on changed.

import { ALL } from "../sinks/groups";
import type { SinkRule } from "../sinks/rule";
import { type Scale, fullScore } from "../sinks/scales";
import type { Model, Overview } from "./model";
import { cutLine, highest, scores, sinkMarks, topTrack } from "./profile";
import { type Selection, chosenRows, selectionKey } from "./selection";

/** Never changed: another one takes its place whenever anything in it did. */
export interface Derived {
  selection: Selection;
  rule: SinkRule | null;
  scale: Scale;
  overview: Overview;
  /** Rows that were averaged. */
  rows: number;
  keys: Int32Array;
  /** (step, position) */
  scores: Float64Array;
  /** (step, position): 2 where at least half of the rows hold a sink, 1 where one in twenty does. */
  sinks: Uint8Array;
  /** (step) */
  top: Int32Array;
  cuts: Float64Array;
  highest: number;
  /** Score of a fair share, with as many keys as there are at most. */
  fair: number;
  complete: boolean;
}

/** Whether keys are there at a step, but the chosen group has no query that could pay attention to them. */
export function nobodyAsks({ selection, keys }: Derived, step: number): boolean {
  return selection.group !== ALL && keys[step] === 0;
}

/** The key that is a sink at most steps and in most maps, else the one that receives most; -1 where there is no key. */
export function leadingKey({ overview, scores }: Pick<Derived, "overview" | "scores">): number {
  const { positions } = overview.mean;
  const held = new Float64Array(positions);
  const sums = new Float64Array(positions).fill(NaN);
  scores.forEach((score, at) => {
    if (Number.isNaN(score)) return;
    held[at % positions] += overview.counts?.held[at] ?? 0;
    sums[at % positions] = (sums[at % positions] || 0) + score;
  });
  let best = -1;
  sums.forEach((sum, at) => {
    if (Number.isNaN(sum)) return;
    if (best < 0 || held[at] > held[best] || (held[at] === held[best] && sum > sums[best])) best = at;
  });
  return best;
}

/** While a sweep is under way the charts follow at this pace. */
const PACE = 140;

export class Deriver {
  private key = "";
  private rulesKey = "";
  private made = 0;
  private latest: Derived | null = null;

  constructor(private readonly model: Model) {}

  derive(selection: Selection, rule: SinkRule | null, scale: Scale, step: number): Derived {
    const overview = this.model.overview(selection, rule, step);
    const left = overview.mean.left + (overview.counts?.left ?? 0);
    const settings = [selectionKey(selection), scale, rule?.describe() ?? "none"].join(" ");
    const key = `${settings} ${left}`;
    const now = performance.now();
    // The step in view has to be there at once, the rest may lag behind a running sweep.
    const fresh = settings === this.rulesKey && (key === this.key || (left > 0 && now - this.made < PACE));
    if (this.latest && fresh && this.has(step)) return this.latest;
    this.latest = this.make(overview, selection, rule, scale, left === 0);
    this.key = key;
    this.rulesKey = settings;
    this.made = now;
    return this.latest;
  }

  private has(step: number): boolean {
    const { latest } = this;
    if (!latest || latest.complete) return true;
    const { positions } = latest.overview.mean;
    const known = latest.scores
      .subarray(step * positions, (step + 1) * positions)
      .some((score) => !Number.isNaN(score));
    return known || !latest.overview.mean.done[step];
  }

  private make(
    overview: Overview,
    selection: Selection,
    rule: SinkRule | null,
    scale: Scale,
    complete: boolean,
  ): Derived {
    const { mean } = overview;
    const keys = this.model.keysOf(selection.group);
    const most = Math.max(1, highest(keys, 1));
    const all = scores(mean, keys, scale);
    const rows = chosenRows(this.model.sample, selection).length;
    return {
      selection,
      rule,
      scale,
      overview,
      rows,
      keys,
      scores: all,
      sinks: sinkMarks(overview.counts, mean.values.length, rows),
      top: topTrack(mean),
      // What a mean of rows has to pass says nothing about its rows.
      cuts: cutLine(mean, rows === 1 ? rule : null, keys, scale),
      highest: highest(all, 0),
      fair: fullScore(scale, most) / most,
      complete,
    };
  }
}
