// Charts in words, for those who do not see them.

import type { Sample } from "../document/sample";
import { type Derived, nobodyAsks } from "../measure/derived";
import { MOST, SOME } from "../measure/profile";
import { NOBODY, details } from "./details";
import { counted, short } from "./numbers";
import type { Subject } from "./pointing";

/** The step in view: how many sinks, and the first of them. */
export function stepSentence(subject: Subject): string {
  const { sample, derived, step } = subject;
  const { positions } = sample.spec;
  if (nobodyAsks(derived, step)) return NOBODY;
  const sinks = derived.sinks.subarray(step * positions, (step + 1) * positions);
  const count = sinks.reduce((sum, mark) => sum + (mark > 0 ? 1 : 0), 0);
  if (count === 0) return "no sinks";
  const at = sinks.findIndex((mark) => mark > 0);
  const first = details(subject, step, at).slice(0, 2).join(", ");
  return `${count === 1 ? "one position is a sink" : `${count} positions are sinks`}, first ${first}`;
}

export function mapSummary(sample: Sample, derived: Derived): string {
  const { steps, positions } = sample.spec;
  const rings = derived.sinks.reduce((sum, mark) => sum + (mark > 0 ? 1 : 0), 0);
  const where = new Set<number>();
  derived.sinks.forEach((mark, at) => mark && where.add(at % positions));
  const places = [...where].sort((a, b) => a - b);
  const named = places.length === 0 ? "" : ` at ${places.length === 1 ? "position" : "positions"} ${listed(places)}`;
  return (
    `Received attention of ${counted(positions, "position")} at ${counted(steps, "step")}, highest score ` +
    `${short(derived.highest)}. ${counted(rings, "sink")}${named}. Up and down arrows move through positions, Enter pins.`
  );
}

/** What the marks in the map are, as far as it has any. */
export function mapMarks(sample: Sample, derived: Derived): string {
  const { prompt_length, positions, bidirectional } = sample.spec;
  const marks = [];
  const rings = [
    ...(derived.sinks.includes(MOST) ? ["in at least half"] : []),
    ...(derived.sinks.includes(SOME) ? ["thin in one in twenty"] : []),
  ];
  if (rings.length > 0)
    marks.push(derived.rows === 1 ? "rings: sinks" : `rings: sinks, ${rings.join(", ")} of ${derived.rows} maps`);
  if (sample.committedAt.some((step) => step >= 0)) marks.push("bars: tokens are committed");
  if (bidirectional && sample.blockStart) marks.push("dashes: the current block");
  if (prompt_length > 0 && prompt_length < positions) marks.push("line: end of the prompt");
  const empty = derived.scores.map((score, at) =>
    Number.isNaN(score) ? (nobodyAsks(derived, Math.floor(at / positions)) ? 2 : 1) : 0,
  );
  if (empty.includes(1)) marks.push("hatched: no such key yet");
  if (empty.includes(2)) marks.push("hatched: no query of this group");
  const text = marks.join(" · ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function trackSummary(sample: Sample, derived: Derived): string {
  const known = [...derived.top].filter((position) => position >= 0);
  const moves = known.slice(1).filter((position, index) => position !== known[index]).length;
  const { prompt_length } = sample.spec;
  const inside = known.filter((position) => position < prompt_length).length;
  if (known.length === 0) return "Position of the strongest key by step: none.";
  return (
    `Position of the strongest key by step: from ${known[0]} to ${known[known.length - 1]}, ` +
    `${counted(moves, "move")}, in the prompt at ${inside} of ${known.length} steps.`
  );
}

function listed(places: readonly number[]): string {
  return places.length > 8 ? `${places.slice(0, 8).join(", ")} and ${places.length - 8} more` : places.join(", ");
}
