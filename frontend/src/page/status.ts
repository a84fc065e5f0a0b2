// The line under the pickers: what a reader should know of the sample.

import type { SampleSpec } from "../document/types";

export function statusText(spec: SampleSpec, step: number, waiting: boolean): string {
  if (waiting) return "Opening …";
  if (spec.steps === 0) return "No step of this sample is on disk yet.";
  const notes = [];
  if (!spec.bidirectional)
    notes.push("autoregressive: step 0 is the mean over the prompt's queries, each later step one query's row");
  if (!spec.complete) notes.push(`unfinished: ${spec.steps} steps so far`);
  if (step >= spec.steps) notes.push(`ended at step ${spec.steps - 1}, which stays in view`);
  if (spec.tokens === null) notes.push("no token texts in this trace, numbers are shown");
  if (spec.intervention !== null) notes.push("recorded under an intervention, see About");
  return notes.join(" · ");
}
