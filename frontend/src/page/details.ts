// The numbers about one token at one step, in words.

import type { Sample } from "../document/sample";
import { type Derived, nobodyAsks } from "../measure/derived";
import { fullScore } from "../sinks/scales";
import { quoted } from "./glyphs";
import type { Lexicon } from "./lexicon";
import { percent, short } from "./numbers";

export function tokenName(lexicon: Lexicon, token: number): string {
  const kind = lexicon.kind(token);
  return kind === "mask" ? "blank (mask)" : kind === "nothing" ? "nothing yet" : quoted(lexicon.text(token));
}

export function tokenAt(sample: Sample, step: number, position: number): number {
  return sample.canvas?.[step * sample.spec.positions + position] ?? sample.spec.final_sequence[position] ?? -1;
}

export const NOBODY = "no query of this group at this step";

/** Lines for the tip; joined they make a sentence for the live line. */
export function details(sample: Sample, lexicon: Lexicon, derived: Derived, step: number, position: number): string[] {
  const at = step * sample.spec.positions + position;
  const score = derived.scores[at];
  const token = tokenAt(sample, step, position);
  const id = sample.spec.tokens !== null && token >= 0 ? ` (id ${token})` : "";
  const lines = [`${position}: ${tokenName(lexicon, token)}${id}`];
  if (nobodyAsks(derived, step)) return [...lines, NOBODY];
  if (Number.isNaN(score))
    return [...lines, derived.overview.mean.done[step] ? "no such key at this step" : "reading …"];
  const share = score / fullScore(derived.scale, derived.keys[step]);
  lines.push(`score ${short(score)} (${percent(share)} of attention)`);
  if (derived.sinks[at]) lines.push("a sink in what is shown");
  const held = derived.overview.counts?.held[at] ?? 0;
  if (derived.rows > 1 && derived.overview.counts) lines.push(`a sink in ${held} of ${derived.rows} maps`);
  lines.push(...commitLines(sample, step, position, at));
  return lines;
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
