// Numbers of each step beside received attention: how sure the model was of what it committed, norms and entropy.

import type { Sample } from "../document/sample";
import { MEASURE_LABELS, MEASURES } from "./measures";
import type { Model } from "./model";
import { type Selection, chosenRows, selectionKey } from "./selection";
import { ALL } from "../sinks/groups";

export const QUANTITIES = ["confidence", ...MEASURES] as const;
export type Quantity = (typeof QUANTITIES)[number];

export const QUANTITY_LABELS: Record<Quantity, string> = {
  confidence: "confidence of what is committed",
  ...MEASURE_LABELS,
};

export function offeredQuantities({ sample, measures }: Model): Quantity[] {
  return [...(sample.confidence && sample.committed ? (["confidence"] as const) : []), ...measures.names];
}

/** One number a step, in the layer and head that are picked; confidence has neither. */
export function quantityCurve(quantity: Quantity, model: Model, selection: Selection): Float64Array {
  if (quantity === "confidence") return confidenceCurve(model.sample);
  const all = { ...selection, group: ALL };
  return model.measures.curve(quantity, selectionKey(all), chosenRows(model.sample, all));
}

function confidenceCurve({ spec, committed, confidence }: Sample): Float64Array {
  return Float64Array.from({ length: spec.steps }, (_, step) => {
    let sum = 0;
    let count = 0;
    for (let at = step * spec.positions; at < (step + 1) * spec.positions; at++) {
      if (!committed?.[at] || Number.isNaN(confidence?.[at] ?? NaN)) continue;
      sum += confidence![at];
      count++;
    }
    return count > 0 ? sum / count : NaN;
  });
}
