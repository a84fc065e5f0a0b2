// The tables under the charts: sinks by position, and the tokens that hold them beside their base rates.

import type { Sample } from "../document/sample";
import { type Scale, fullScore } from "../sinks/scales";
import type { SinkCounts, MeanMap } from "./overview";

export interface PositionRow {
  position: number;
  /** Token of the finished sequence. */
  token: number;
  /** Steps at which some map in view holds it as a sink, and steps at which it exists. */
  steps: number;
  existed: number;
  /** Share of the (step, layer, head) maps in which it exists and is a sink. */
  maps: number;
  /** Mean score over the steps at which some map in view holds it as a sink; of several maps it is the mean of all of them. */
  score: number;
}

export function positionTable(
  sample: Sample,
  mean: MeanMap,
  counts: SinkCounts,
  rows: number,
  keys: Int32Array,
  scale: Scale,
): PositionRow[] {
  const { steps, positions, final_sequence } = sample.spec;
  const table: PositionRow[] = [];
  for (let position = 0; position < positions; position++) {
    let sinks = 0,
      existed = 0,
      held = 0,
      score = 0;
    for (let step = 0; step < steps; step++) {
      const at = step * positions + position;
      const value = mean.values[at];
      if (Number.isNaN(value)) continue;
      existed++;
      if (counts.held[at] === 0) continue;
      sinks++;
      held += counts.held[at];
      score += value * fullScore(scale, keys[step]);
    }
    if (held === 0) continue;
    const maps = held / (existed * rows);
    table.push({
      position,
      token: final_sequence[position] ?? -1,
      steps: sinks,
      existed,
      maps,
      score: score / sinks,
    });
  }
  return table.sort((a, b) => b.steps - a.steps || b.maps - a.maps || b.score - a.score || a.position - b.position);
}

export interface TokenRow {
  token: number;
  /** Share of all sinks that stand on this token, its share of all cells, and the ratio of the two. */
  sinks: number;
  base: number;
  lift: number;
}

/** As the table "tokens" of `sinkscope sinks`: every (step, existing position) is a cell. */
export function tokenTable(sample: Sample, mean: MeanMap, counts: SinkCounts): TokenRow[] {
  const { canvas } = sample;
  if (!canvas) return [];
  const cells = new Map<number, { cells: number; sinks: number }>();
  let all = 0,
    sinks = 0;
  for (let at = 0; at < canvas.length; at++) {
    if (Number.isNaN(mean.values[at])) continue;
    const entry = cells.get(canvas[at]) ?? { cells: 0, sinks: 0 };
    entry.cells++;
    entry.sinks += counts.held[at];
    cells.set(canvas[at], entry);
    all++;
    sinks += counts.held[at];
  }
  const rows = [...cells].map(([token, entry]) => {
    const share = sinks > 0 ? entry.sinks / sinks : 0;
    const base = entry.cells / all;
    return { token, sinks: share, base, lift: share / base };
  });
  return rows.filter((row) => row.sinks > 0).sort((a, b) => b.sinks - a.sinks || a.token - b.token);
}
