// The curves over steps: what they are made of, and what they say in words.

import type { ChartData } from "../charts/step_chart";
import type { Sample } from "../document/sample";
import { type Derived, nobodyAsks } from "../measure/derived";
import type { Model } from "../measure/model";
import { highest, positionScores } from "../measure/profile";
import { QUANTITY_LABELS, type Quantity, quantityCurve } from "../measure/quantities";
import { NOBODY, scoreName } from "./details";
import { counted, short } from "./numbers";
import { trackSummary } from "./summaries";

export interface Curves {
  data: ChartData;
  /** The highest value, which the axes of all panes go up to. */
  top: number;
  /** For those who do not see it. */
  label: string;
  note: string;
  /** For the tip over a step. */
  lines(step: number): string[];
}

export function trackCurves(sample: Sample, derived: Derived): Curves {
  const { steps, positions, prompt_length } = sample.spec;
  const values = Float64Array.from(derived.top, (position) => (position < 0 ? NaN : position));
  const across = prompt_length > 0 && prompt_length < positions ? [prompt_length - 0.5] : [];
  const lines = (step: number): string[] => {
    const top = derived.top[step];
    if (nobodyAsks(derived, step)) return [`step ${step}`, NOBODY];
    if (top < 0) return [`step ${step}`, derived.overview.mean.done[step] ? "no key" : "reading …"];
    return [
      `step ${step}`,
      `strongest at position ${top}`,
      `${scoreName(derived)} ${short(derived.scores[step * positions + top])}`,
    ];
  };
  const series = [{ values, style: "line-0", dots: true }];
  return {
    data: { steps, series, yLabel: "position", positions, across },
    top: 0,
    label: trackSummary(sample, derived),
    note: "Its position by step.",
    lines,
  };
}

/** Sinks in a map at every step, NaN where nobody asks or the rule can't fire. */
export function sinksPerMap({ keys, overview, rows }: Derived): Float64Array {
  const { counts } = overview;
  return Float64Array.from(keys, (count, at) => (count > 0 && counts ? counts.sinks[at] / rows : NaN));
}

export function countCurves(sample: Sample, derived: Derived): Curves {
  const { counts } = derived.overview;
  const { steps } = sample.spec;
  const values = sinksPerMap(derived);
  const top = highest(values, 0);
  const most = counts ? `at most ${short(top)}` : "the rule cannot fire";
  const lines = (step: number): string[] => {
    if (nobodyAsks(derived, step)) return [`step ${step}`, NOBODY];
    return counts
      ? [`step ${step}`, `${counted(counts.sinks[step], "sink")} in ${mapCount(derived.rows)}`]
      : [`step ${step}`];
  };
  return {
    data: { steps, series: [{ values, style: "line-0" }], yLabel: "sinks" },
    top,
    label: `Sinks in a map by step: ${most}.`,
    note: derived.rows === 1 ? "In the map that is picked." : `Mean over the ${derived.rows} maps in view.`,
    lines,
  };
}

export function mapCount(rows: number): string {
  return rows === 1 ? "this map" : `${rows} maps`;
}

export function pinnedCurves(sample: Sample, derived: Derived, pins: readonly number[]): Curves {
  const { steps, positions } = sample.spec;
  const series = pins.map((pin, at) => ({ values: positionScores(derived.scores, steps, pin), style: `line-${at}` }));
  const hasCut = pins.length > 0 && derived.cuts.some((value) => !Number.isNaN(value));
  const cut = hasCut ? [{ values: derived.cuts, style: "cut" }] : [];
  const told = pins.map((pin) => `position ${pin}`).join(", ");
  const above = hasCut ? " The dotted line is what a sink has to pass." : "";
  const some = pins.length > 0;
  return {
    data: { steps, series: [...cut, ...series], yLabel: "score" },
    top: Math.max(0, ...[...cut, ...series].map((one) => highest(one.values, 0))),
    label: some ? `Scores by step of ${told}.` : "Scores of pinned tokens by step: none is pinned.",
    note: some
      ? `${derived.rows === 1 ? "Score" : `Mean score of ${derived.rows} maps`} by step.${above}`
      : "Click a token, or press Enter on it, to plot its score.",
    lines: (step) => [`step ${step}`, ...pins.map((pin) => `${pin}: ${short(derived.scores[step * positions + pin])}`)],
  };
}

export function quantityCurves(model: Model, derived: Derived, quantity: Quantity): Curves {
  const values = quantityCurve(quantity, model, derived.selection);
  const label = QUANTITY_LABELS[quantity];
  const series = [{ values, style: "line-0", dots: quantity === "confidence" }];
  const top = highest(values, 0);
  return {
    data: { steps: model.sample.spec.steps, series, yLabel: quantity.replace("_", " ") },
    top,
    label: `Mean ${label} by step: at most ${short(top)}.`,
    note:
      quantity === "confidence"
        ? "Mean over the tokens of a step."
        : `Mean over positions, in ${mapCount(derived.rows)}.`,
    lines: (step) => [`step ${step}`, `${label}: ${short(values[step])}`],
  };
}
