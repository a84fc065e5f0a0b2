// The rows of one step: received attention as codes, or, for a group of queries, as numbers worked out from its atoms.

import { type Sample, keyCount, keysAnywhere } from "../document/sample";
import { ALL, members } from "../sinks/groups";

export interface StepRows {
  positions: number;
  /** How many rows there are. */
  rows: number;
  /** Keys that any row of the step has; 0 where the group has no query. */
  keys: number;
  /** The codes of all rows, or null where they are numbers. */
  codes: Uint8Array | null;
  table: Float64Array;
  /** Writes a row's values, NaN where no key exists. */
  read(row: number, out: Float64Array): void;
}

/** The rows of a step if their bytes are at hand. */
export function peekRows(sample: Sample, group: string, step: number): StepRows | null {
  const codes = sample.received.bytes.peek(step);
  if (!codes) return null;
  if (group === ALL) return codedRows(sample, codes);
  const parts = sample.byGroup?.bytes.peek(step) ?? null;
  return parts && groupRows(sample, group, step, codes, parts);
}

export async function loadRows(sample: Sample, group: string, step: number): Promise<StepRows | null> {
  await Promise.all([sample.received.bytes.load(step), group === ALL ? null : sample.byGroup?.bytes.load(step)]);
  return peekRows(sample, group, step);
}

function codedRows(sample: Sample, codes: Uint8Array): StepRows {
  const { positions } = sample.spec;
  const { table, rows } = sample.received;
  const read = (row: number, out: Float64Array): void => {
    const from = row * positions;
    for (let i = 0; i < positions; i++) out[i] = table[codes[from + i]];
  };
  return { positions, rows, keys: keyCount(codes, positions), codes, table, read };
}

/** Weights of the atoms in a union: the queries of each, as `sinks/queries.py` has it. */
function weights(sample: Sample, group: string, step: number): { atom: number; queries: number }[] {
  const { groups } = sample.spec;
  const { queries } = sample;
  if (!queries) return [];
  return members(group, groups)
    .map((atom) => ({ atom, queries: queries[step * groups.length + atom] }))
    .filter((part) => part.queries > 0);
}

function groupRows(sample: Sample, group: string, step: number, keys: Uint8Array, parts: Uint8Array): StepRows {
  const { positions, layers, groups } = sample.spec;
  const table = sample.byGroup!.table;
  const taken = weights(sample, group, step);
  const asked = taken.reduce((sum, part) => sum + part.queries, 0);
  const there = keysAnywhere(keys, positions);
  const read = (layer: number, out: Float64Array): void => {
    for (let i = 0; i < positions; i++) {
      let paid = asked > 0 && there[i] ? 0 : NaN;
      for (const part of taken)
        paid += table[parts[(layer * groups.length + part.atom) * positions + i]] * part.queries;
      out[i] = paid / asked;
    }
  };
  const count = asked > 0 ? keyCount(keys, positions) : 0;
  return { positions, rows: layers, keys: count, codes: null, table, read };
}
