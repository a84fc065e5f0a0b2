// How many keys the rows of a sample have, which decides whether a rule can fire at all.

import { type Sample, keyCount } from "../document/sample";
import { ALL, members } from "../sinks/groups";
import type { KeyCounts } from "../sinks/rule";

/**
 * Keys of every step for the queries of a group; 0 where nobody asks. Counted from the codes where these are at hand.
 * Of a served trace they are not: there, bidirectional models have all keys, others one more at each step.
 */
export function keysPerStep(sample: Sample, group: string): Int32Array {
  const { steps, positions } = sample.spec;
  const keys = new Int32Array(steps);
  for (let step = 0; step < steps; step++) {
    const codes = sample.received.bytes.peek(step);
    if (group !== ALL && askers(sample, group, step) === 0) keys[step] = 0;
    else keys[step] = codes ? keyCount(codes, positions) : expected(sample, step);
  }
  return keys;
}

function expected(sample: Sample, step: number): number {
  const { bidirectional, positions, prompt_length } = sample.spec;
  return bidirectional ? positions : Math.min(positions, prompt_length + step);
}

function askers(sample: Sample, group: string, step: number): number {
  const { queries } = sample;
  const recorded = sample.spec.groups;
  if (!queries) return 0;
  return members(group, recorded).reduce((sum, atom) => sum + queries[step * recorded.length + atom], 0);
}

/** The fewest and most keys over the steps that have any, or the reason why there is no answer. */
export function keyCounts(keys: Int32Array, group: string): KeyCounts | string {
  const some = keys.filter((count) => count > 0);
  if (some.length === 0) {
    return `no received attention by queries '${group}' at any step: choose another group or other steps`;
  }
  return { fewest: some.reduce((a, b) => Math.min(a, b)), most: some.reduce((a, b) => Math.max(a, b)) };
}
