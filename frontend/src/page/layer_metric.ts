// What the layer x head map shows at a step, and how it is shaded.

import { type Shades, shades } from "../charts/shading";
import type { ThemeColours } from "../charts/theme_colours";
import type { Derived } from "../measure/derived";
import { METRICS, type Metric, atPosition, strongest } from "../measure/layer_heads";
import type { Model } from "../measure/model";
import { highest } from "../measure/profile";
import { selectionKey } from "../measure/selection";
import type { StepRows } from "../measure/step_rows";
import { ALL } from "../sinks/groups";
import { fullScore } from "../sinks/scales";
import type { Shading } from "../state/state";

export interface LayerView {
  model: Model;
  derived: Derived;
  step: number;
  metric: Metric;
  pin: number | null;
  shading: Shading;
  colours: ThemeColours;
}

/** What can be shown here. */
export function offeredMetrics({ derived, pin, model }: LayerView): Metric[] {
  return METRICS.filter((metric) => {
    if (metric === "sinks") return derived.rule !== null;
    if (metric === "pinned") return pin !== null;
    if (metric === "strongest") return true;
    return derived.selection.group === ALL && model.sample.measures[metric] !== undefined;
  });
}

/** One value for every layer and head, or every layer where the heads were averaged. */
export function metricValues(metric: Metric, view: LayerView, rows: StepRows): Float64Array {
  const { derived, step, model } = view;
  if (metric === "sinks") return model.sinksByRow(rows, step, derived.rule!);
  if (metric === "strongest" || metric === "pinned") {
    const shares = metric === "pinned" ? atPosition(rows, view.pin!) : strongest(rows);
    const full = fullScore(derived.scale, rows.keys);
    return shares.map((share) => share * full);
  }
  return model.measures.byRow(metric, step);
}

/** The highest value in this map, at any step once all are known: the shades do not change from step to step. */
export function peakOf(metric: Metric, view: LayerView, values: Float64Array): number {
  const { model, derived, pin } = view;
  const { selection, scale, rule, complete } = derived;
  const group = selectionKey({ ...selection, layer: null, head: null });
  const key = [metric, group, scale, rule?.describe(), metric === "pinned" ? pin : null].join();
  return model.peak(key, highest(values, 0), complete, selection.group, (step, rows) =>
    isAtHand(metric, model, step) ? highest(metricValues(metric, { ...view, step }, rows), 0) : 0,
  );
}

/** Norms and entropy of a served trace are read when a step is looked at, not all of them for the shades. */
function isAtHand(metric: Metric, { sample }: Model, step: number): boolean {
  if (metric === "sinks" || metric === "strongest" || metric === "pinned") return true;
  return sample.measures[metric]?.bytes.peek(step) != null;
}

export function shadesOf(metric: Metric, { derived, shading }: LayerView, peak: number): Shades {
  const isScore = metric === "strongest" || metric === "pinned";
  return isScore ? shades(shading, peak, derived.fair) : shades("linear", peak, 1);
}
