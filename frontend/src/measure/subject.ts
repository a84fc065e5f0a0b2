// Where a page opens: at the layer and head in which the rule finds a sink at most steps, not at a mean that hides it.

import type { Sample } from "../document/sample";
import { ALL } from "../sinks/groups";
import type { SinkRule } from "../sinks/rule";
import { strongest } from "./layer_heads";
import type { Model } from "./model";
import { highest } from "./profile";
import { type StepRows, loadRows } from "./step_rows";

/** As many steps are looked at, evenly spread, the first and the last among them. */
const LOOKED_AT = 6;

export interface Subject {
  /** Indices. */
  layer: number;
  head: number;
  /** The strongest key there at this step. */
  position: number;
  /** The first of the steps that were looked at with a sink there. */
  step: number;
}

export function spread(steps: number, most = LOOKED_AT): number[] {
  const count = Math.min(steps, most);
  const places = Array.from({ length: count }, (_, at) => Math.round((at * (steps - 1)) / Math.max(1, count - 1)));
  return [...new Set(places)];
}

function strongestKey(rows: StepRows, row: number): number {
  const values = new Float64Array(rows.positions);
  rows.read(row, values);
  return values.indexOf(highest(values, NaN));
}

/** Null where no layer and head has a sink at the steps that were looked at. Equal heads: the one with the highest score. */
export async function subjectOf(sample: Sample, model: Model, rule: SinkRule): Promise<Subject | null> {
  if (model.refusal(rule, ALL) !== null) return null;
  const { rows } = sample.received;
  const steps = new Float64Array(rows);
  const scores = new Float64Array(rows);
  const first = new Int32Array(rows).fill(-1);
  const tops = new Int32Array(rows);
  for (const step of spread(sample.spec.steps)) {
    const at = await loadRows(sample, ALL, step);
    if (!at) continue;
    const found = model.sinksByRow(at, step, rule);
    const most = strongest(at);
    found.forEach((count, row) => {
      if (!(count > 0)) return;
      steps[row]++;
      // A share of attention, over more steps than there are: all of it never outweighs a step.
      scores[row] += most[row] / (LOOKED_AT + 1);
      if (first[row] >= 0) return;
      first[row] = step;
      tops[row] = strongestKey(at, row);
    });
  }
  const best = steps.reduce((top, count, row) => (count + scores[row] > steps[top] + scores[top] ? row : top), 0);
  if (!(steps[best] > 0)) return null;
  const { heads } = sample.spec;
  return { layer: Math.floor(best / heads), head: best % heads, position: tops[best], step: first[best] };
}
