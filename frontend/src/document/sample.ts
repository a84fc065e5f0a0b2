// One sample, opened: small arrays whole, received attention a step at a time.

import { MISSING, lookupTable } from "./codes";
import { readBits, readFloat32, readInt32 } from "./small_array";
import { type StepBytes, openSteps } from "./step_bytes";
import type { ArraySpec, SampleSpec } from "./types";

/** Coded attention: `rows` rows of one number a position at every step. */
export interface CodedArray {
  table: Float64Array;
  bytes: StepBytes;
  rows: number;
}

/** What may be recorded besides, of every step, layer and head and each of its keys or queries. */
export const MEASURES = ["key_norm", "value_norm", "entropy"] as const;
export type Measure = (typeof MEASURES)[number];

export interface Sample {
  spec: SampleSpec;
  /** Rows are layer x head. */
  received: CodedArray;
  /** Rows are layer x group, averaged over heads; absent where it was not recorded. */
  byGroup: CodedArray | null;
  measures: Partial<Record<Measure, CodedArray>>;
  /** Full maps: steps are those of `spec.maps`, rows are layer x head x query; absent where none was recorded. */
  maps: CodedArray | null;
  /** (step, group) */
  queries: Int32Array | null;
  /** (step, position) */
  canvas: Int32Array | null;
  committed: Uint8Array | null;
  confidence: Float32Array | null;
  /** (step) */
  blockStart: Int32Array | null;
  blockStop: Int32Array | null;
  /** Step after which a position was committed, -1 where it never was. */
  committedAt: Int32Array;
}

async function openCodes(spec: ArraySpec, rows: number): Promise<CodedArray> {
  if (!spec.encoding) throw new Error("received attention of this report is not coded as expected");
  return {
    table: lookupTable(spec.encoding),
    bytes: await openSteps(spec, 1),
    rows,
  };
}

export function commitSteps(committed: Uint8Array | null, steps: number, positions: number): Int32Array {
  const at = new Int32Array(positions).fill(-1);
  if (!committed) return at;
  for (let step = steps - 1; step >= 0; step--) {
    for (let position = 0; position < positions; position++) {
      if (committed[step * positions + position]) at[position] = step;
    }
  }
  return at;
}

export async function openSample(spec: SampleSpec): Promise<Sample> {
  const { arrays } = spec;
  const groups = arrays["received_by_group"];
  const rows = ({ shape }: ArraySpec): number => shape.slice(1, -1).reduce((product, length) => product * length, 1);
  const other = async (name: string): Promise<CodedArray | null> => {
    const array = arrays[name];
    return array && array.shape[0] > 0 ? openCodes(array, rows(array)) : null;
  };
  const [received, byGroup, queries, canvas, committed, confidence, blockStart, blockStop] = await Promise.all([
    openCodes(arrays["received"], spec.layers * spec.heads),
    groups ? openCodes(groups, spec.layers * groups.shape[2]) : null,
    readInt32(arrays["queries"]),
    readInt32(arrays["canvas"]),
    readBits(arrays["committed"]),
    readFloat32(arrays["confidence"]),
    readInt32(arrays["block_start"]),
    readInt32(arrays["block_stop"]),
  ]);
  const [maps, ...measured] = await Promise.all(["attention", ...MEASURES].map(other));
  const measures = Object.fromEntries(MEASURES.flatMap((name, at) => (measured[at] ? [[name, measured[at]]] : [])));
  const committedAt = commitSteps(committed, spec.steps, spec.positions);
  return {
    spec,
    received,
    byGroup,
    measures,
    maps,
    queries,
    canvas,
    committed,
    confidence,
    blockStart,
    blockStop,
    committedAt,
  };
}

/** The keys that any row of a step's codes has, 1 where there is one: rows differ where a cache dropped keys. */
export function keysAnywhere(codes: Uint8Array, positions: number): Uint8Array {
  const there = new Uint8Array(positions);
  let left = positions;
  for (let from = 0; from < codes.length && left > 0; from += positions) {
    for (let position = 0; position < positions; position++) {
      if (there[position] || codes[from + position] === MISSING) continue;
      there[position] = 1;
      left--;
    }
  }
  return there;
}

/** Number of keys that any row of a step's codes has. */
export function keyCount(codes: Uint8Array, positions: number): number {
  return keysAnywhere(codes, positions).reduce((sum, one) => sum + one, 0);
}
