// The curves over steps: what they are made of, and what they say in words.

import type { ChartData } from "../charts/step_chart";
import type { Sample } from "../document/sample";
import { type Derived, nobodyAsks } from "../measure/derived";
import { highest, positionScores } from "../measure/profile";
import { NOBODY } from "./details";
import { short } from "./numbers";
import { trackSummary } from "./summaries";

export interface Curves {
  data: ChartData;
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
    return [`step ${step}`, `strongest at position ${top}`, `score ${short(derived.scores[step * positions + top])}`];
  };
  const series = [{ values, style: "line-0", dots: true }];
  return {
    data: { steps, series, yLabel: "position", positions, across },
    label: trackSummary(sample, derived),
    note: "",
    lines,
  };
}

export function countCurves(sample: Sample, derived: Derived): Curves {
  const { counts } = derived.overview;
  const { steps } = sample.spec;
  const per = (at: number): number => (derived.keys[at] > 0 && counts ? counts.sinks[at] / derived.rows : NaN);
  const values = Float64Array.from({ length: steps }, (_, at) => per(at));
  const most = counts ? `at most ${short(highest(values, 0))}` : "the rule cannot fire";
  const lines = (step: number): string[] => {
    if (nobodyAsks(derived, step)) return [`step ${step}`, NOBODY];
    return counts ? [`step ${step}`, `${short(counts.sinks[step])} sinks in ${derived.rows} maps`] : [`step ${step}`];
  };
  return {
    data: { steps, series: [{ values, style: "line-0" }], yLabel: "sinks" },
    label: `Sinks in a map by step: ${most}.`,
    note: "",
    lines,
  };
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
    label: some ? `Scores by step of ${told}.` : "Scores of pinned tokens by step: none is pinned.",
    note: some ? `Score by step.${above}` : "Click a token, or press Enter on it, to plot its score.",
    lines: (step) => [`step ${step}`, ...pins.map((pin) => `${pin}: ${short(derived.scores[step * positions + pin])}`)],
  };
}
