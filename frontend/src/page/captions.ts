// What stands under a saved picture: enough to know, without the page, what it shows.

import { SCALE_LABELS } from "../sinks/scales";
import { ALL } from "../sinks/groups";
import type { PaneState } from "../state/state";
import { quoted } from "./glyphs";
import type { Subject } from "./pointing";

/** Letters of the prompt. */
const LONGEST = 160;

export function captionLines(title: string, trace: string, subject: Subject, pane: PaneState): string[] {
  const { sample, lexicon, derived, step } = subject;
  const { spec } = sample;
  const prompt = spec.final_sequence.slice(0, spec.prompt_length).map((token) => lexicon.text(token));
  const rule = derived.rule ? `rule ${derived.rule.describe()}` : "no rule";
  const queries = pane.queries === ALL ? "all queries" : `queries ${pane.queries}`;
  return [
    title,
    `${trace}, sample ${spec.id}; ${placeName(subject)}; step ${step} of ${spec.steps - 1}`,
    `${rule}; score: received attention, ${SCALE_LABELS[derived.scale]}; ${queries}`,
    `prompt: ${quoted(prompt.join(""), LONGEST)}`,
  ];
}

/** The layer and head in view, in words. */
export function placeName({ sample, derived }: Subject): string {
  const { layer, head, group } = derived.selection;
  const { layer_numbers, head_numbers } = sample.spec;
  const layers = layer === null ? "mean of all layers" : `layer ${layer_numbers[layer]}`;
  const heads = head === null || group !== ALL ? "mean of all heads" : `head ${head_numbers[head]}`;
  return `${layers}, ${heads}`;
}
