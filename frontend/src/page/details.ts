// The numbers about one token at one step, in words.

import type { Sample } from "../document/sample";
import { type Derived, nobodyAsks } from "../measure/derived";
import { LEAST, MEASURE_LABELS } from "../measure/measures";
import { chosenRows } from "../measure/selection";
import { ALL } from "../sinks/groups";
import { fullScore } from "../sinks/scales";
import { quoted } from "./glyphs";
import type { Lexicon } from "./lexicon";
import { percent, short } from "./numbers";
import type { Subject } from "./pointing";

export function tokenName(lexicon: Lexicon, token: number): string {
  const kind = lexicon.kind(token);
  return kind === "mask" ? "blank (mask)" : kind === "nothing" ? "nothing yet" : quoted(lexicon.text(token));
}

export function tokenAt(sample: Sample, step: number, position: number): number {
  return sample.canvas?.[step * sample.spec.positions + position] ?? sample.spec.final_sequence[position] ?? -1;
}

/** Of several maps, what is shown is their mean. */
export function scoreName({ rows }: Pick<Derived, "rows">): string {
  return rows === 1 ? "score" : "mean score";
}

export const NOBODY = "no query of this group at this step";

/** Lines for the tip; joined they make a sentence for the live line. */
export function details(
  { model, lexicon, derived }: Pick<Subject, "model" | "lexicon" | "derived">,
  step: number,
  position: number,
): string[] {
  const { sample } = model;
  const at = step * sample.spec.positions + position;
  const score = derived.scores[at];
  const token = tokenAt(sample, step, position);
  const id = sample.spec.tokens !== null && token >= 0 ? ` (id ${token})` : "";
  const lines = [`${position}: ${tokenName(lexicon, token)}${id}`];
  if (nobodyAsks(derived, step)) return [...lines, NOBODY];
  if (Number.isNaN(score))
    return [...lines, derived.overview.mean.done[step] ? "no such key at this step" : "reading …"];
  const share = score / fullScore(derived.scale, derived.keys[step]);
  lines.push(`${scoreName(derived)} ${short(score)} (${percent(share)} of attention)`);
  if (derived.overview.counts) lines.push(held(derived, at));
  lines.push(...commitLines(sample, step, position, at));
  const rows = chosenRows(sample, { ...derived.selection, group: ALL });
  for (const name of model.measures.names) {
    const value = model.measures.at(name, step, rows, position);
    const label = MEASURE_LABELS[name].replace("keys", "key").replace("values", "value");
    if (!Number.isNaN(value)) lines.push(`${label}: ${value <= LEAST ? "≤ " : ""}${short(value)}`);
  }
  return lines;
}

function held({ overview, rows }: Derived, at: number): string {
  const count = overview.counts!.held[at];
  return rows === 1 ? (count > 0 ? "a sink" : "no sink") : `a sink in ${count} of ${rows} maps`;
}

function commitLines(sample: Sample, step: number, position: number, at: number): string[] {
  if (position < sample.spec.prompt_length && sample.committedAt[position] < 0) return ["prompt"];
  const committed = sample.committedAt[position];
  if (committed < 0) return [];
  const confidence = sample.confidence?.[committed * sample.spec.positions + position] ?? NaN;
  const sure = Number.isNaN(confidence) ? "" : `, confidence ${short(confidence)}`;
  if (sample.committed?.[at]) return [`committed after this step${sure}`];
  return [`${step > committed ? "committed" : "to be committed"} after step ${committed}${sure}`];
}
