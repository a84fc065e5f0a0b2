// Curves and marks over all steps, read off the mean map: what is shown as a sink, where the strongest key is.

import type { SinkRule } from "../sinks/rule";
import { type Scale, fullScore } from "../sinks/scales";
import { factsOf } from "./row_facts";
import type { MeanMap, SinkCounts } from "./overview";

export const SOME = 1;
export const MOST = 2;

/** Fewer rows than this share are not marked: of a thousand maps, nearly every key is a sink in some. */
const FEW = 0.05;

/** (step, position): `MOST` where at least half of the rows hold a sink, `SOME` where one in twenty does, else 0. */
export function sinkMarks(counts: SinkCounts | null, cells: number, rows: number): Uint8Array {
  const marks = new Uint8Array(cells);
  counts?.held.forEach((held, at) => {
    if (held > 0 && held >= FEW * rows) marks[at] = 2 * held >= rows ? MOST : SOME;
  });
  return marks;
}

/** (step, position): the mean as a score; NaN without a key. */
export function scores(mean: MeanMap, keys: Int32Array, scale: Scale): Float64Array {
  const { positions, values } = mean;
  return values.map((value, at) => value * fullScore(scale, keys[Math.floor(at / positions)]));
}

/** The position that receives most at every step, ties going to the lower one; -1 where no key is known. */
export function topTrack(mean: MeanMap): Int32Array {
  const top = new Int32Array(mean.done.length).fill(-1);
  for (let step = 0; step < top.length; step++) {
    let most = -Infinity;
    mean.at(step).forEach((value, position) => {
      if (!(value > most)) return;
      most = value;
      top[step] = position;
    });
  }
  return top;
}

/** The score above which a key is a sink in what is shown, by step; NaN where the rule has no such value. */
export function cutLine(mean: MeanMap, rule: SinkRule | null, keys: Int32Array, scale: Scale): Float64Array {
  const cuts = new Float64Array(mean.done.length).fill(NaN);
  for (let step = 0; rule && step < cuts.length; step++) {
    if (!mean.done[step] || keys[step] === 0) continue;
    const cut = rule.cut(factsOf(mean.at(step)));
    if (cut !== null) cuts[step] = cut * fullScore(scale, keys[step]);
  }
  return cuts;
}

/** One position's scores over the steps. */
export function positionScores(values: Float64Array, steps: number, position: number): Float64Array {
  const positions = values.length / steps;
  return Float64Array.from({ length: steps }, (_, step) => values[step * positions + position]);
}

/** The highest of some numbers, NaN aside; `otherwise` where there is none. */
export function highest(values: ArrayLike<number>, otherwise: number): number {
  let most = -Infinity;
  for (let i = 0; i < values.length; i++) if (values[i] > most) most = values[i];
  return most === -Infinity ? otherwise : most;
}
