// Rows and samples for tests: fresh numbers from a seed, axes of different prime sizes.

import { MISSING, lookupTable } from "../src/document/codes";
import type { Sample } from "../src/document/sample";
import type { StepBytes } from "../src/document/step_bytes";
import type { LogEncoding, SampleSpec } from "../src/document/types";

export const ENCODING: LogEncoding = {
  kind: "log",
  low: 1e-4,
  high: 1,
  codes: 254,
  most: 1,
  missing: 255,
  zero: 0,
  worst_relative_error: 0.02,
};

/** mulberry32 */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export const STEPS = 5,
  LAYERS = 2,
  HEADS = 3,
  POSITIONS = 7,
  GROUPS = ["prompt", "block-masked", "later"];

function held(bytes: Uint8Array, size: number): StepBytes {
  const peek = (step: number): Uint8Array => bytes.subarray(step * size, (step + 1) * size);
  return { peek, load: (step) => Promise.resolve(peek(step)) };
}

/** Codes with one strong key in each row; with `causal`, step s has POSITIONS - STEPS + 1 + s keys. */
export function sample(seed: number, causal = false): Sample {
  const next = random(seed);
  const codes = (rows: number): Uint8Array => {
    const all = new Uint8Array(STEPS * rows * POSITIONS);
    for (let at = 0; at < all.length; at++) {
      const position = at % POSITIONS;
      const step = Math.floor(at / (rows * POSITIONS));
      const exists = !causal || position <= POSITIONS - STEPS + step;
      all[at] = exists ? Math.floor(next() * 200) + (next() < 0.15 ? 54 : 0) : MISSING;
    }
    return all;
  };
  const table = lookupTable(ENCODING);
  const spec = {
    id: "0",
    prompt_length: 2,
    complete: true,
    bidirectional: !causal,
    mask_token_id: 9,
    special_ids: [8],
    text: null,
    steps: STEPS,
    layers: LAYERS,
    heads: HEADS,
    positions: POSITIONS,
    layer_numbers: [4, 5],
    head_numbers: [0, 1, 2],
    layer_heads: null,
    groups: GROUPS,
    maps: null,
    tokens: null,
    intervention: null,
    final_sequence: [1, 2, 1, 2, 3, 3, 8],
    arrays: {},
  } as SampleSpec;
  const canvas = new Int32Array(STEPS * POSITIONS).map((_, at) =>
    at % POSITIONS > 3 ? 9 : spec.final_sequence[at % POSITIONS],
  );
  return {
    spec,
    received: { table, bytes: held(codes(LAYERS * HEADS), LAYERS * HEADS * POSITIONS), rows: LAYERS * HEADS },
    byGroup: { table, bytes: held(codes(LAYERS * 3), LAYERS * 3 * POSITIONS), rows: LAYERS * 3 },
    measures: {
      entropy: { table, bytes: held(codes(LAYERS * HEADS), LAYERS * HEADS * POSITIONS), rows: LAYERS * HEADS },
    },
    maps: null,
    queries: Int32Array.from({ length: STEPS * 3 }, (_, at) => [2, 3, at < 6 ? 4 : 0][at % 3]),
    canvas,
    committed: null,
    confidence: null,
    blockStart: null,
    blockStop: null,
    committedAt: new Int32Array(POSITIONS).fill(-1),
  };
}
