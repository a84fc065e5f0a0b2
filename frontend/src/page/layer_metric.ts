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
export function offeredMetrics({ derived, pin }: LayerView): Metric[] {
  return METRICS.filter((metric) => {
    if (metric === "sinks") return derived.rule !== null;
    if (metric === "pinned") return pin !== null;
    return true;
  });
}

/** One value for every layer and head, or every layer where the heads were averaged. */
export function metricValues(metric: Metric, view: LayerView, rows: StepRows): Float64Array {
  const { derived, step, model } = view;
  if (metric === "sinks") return model.sinksByRow(rows, step, derived.rule!);
  const shares = metric === "pinned" ? atPosition(rows, view.pin!) : strongest(rows);
  const full = fullScore(derived.scale, rows.keys);
  return shares.map((share) => share * full);
}

/** Shades that stay the same from step to step, or the map would flicker as the steps go by. */
export class MetricShades {
  private subject: unknown[] = [];
  private most = 0;

  of(metric: Metric, view: LayerView, values: Float64Array): Shades {
    const { derived, model } = view;
    if (metric === "strongest" || metric === "pinned") {
      const { high } = derived.selection.group === ALL ? model.sample.received : model.sample.byGroup!;
      return shades(view.shading, high * fullScore(derived.scale, highest(derived.keys, 1)), derived.fair);
    }
    // Of counts the most is known only from the steps that were seen.
    const subject = [model, metric, selectionKey(derived.selection), derived.rule?.describe()];
    const same = subject.every((part, index) => part === this.subject[index]);
    this.most = Math.max(same ? this.most : 0, highest(values, 0));
    this.subject = subject;
    return shades("linear", this.most, 1);
  }
}
