// Full maps, query by key, of the steps, layers and heads for which they were recorded.

import type { Sample } from "../document/sample";
import type { Selection } from "./selection";

export interface FullMap {
  /** The step it is of: the last one with a map up to the step in view, or the first one. */
  step: number;
  /** query x key; NaN where there is none. */
  values: Float64Array;
  queries: number;
  /** How many maps it is the mean of. */
  of: number;
}

/** Null while it is being read; a reason where the selection has none. */
export function fullMap(
  sample: Sample,
  selection: Selection,
  step: number,
  changed: () => void,
  failed: (error: Error) => void,
): FullMap | string | null {
  const { maps: array, spec } = sample;
  if (!array || !spec.maps) return "no full maps were recorded (sinkscope trace --map-steps)";
  const { layers, heads } = spec.maps;
  const steps = spec.maps.steps.slice(0, spec.arrays["attention"].shape[0]);
  const has = (numbers: readonly number[], all: readonly number[], index: number | null): number[] =>
    numbers.flatMap((number, at) => ((index === null ? all.includes(number) : number === all[index]) ? [at] : []));
  const inLayers = has(layers, spec.layer_numbers, selection.layer);
  const inHeads = has(heads, spec.head_numbers, selection.head);
  if (inLayers.length === 0) return `maps were recorded of layers ${layers.join(", ")}: pick one of them`;
  if (inHeads.length === 0) return `maps were recorded of heads ${heads.join(", ")}: pick one of them`;
  const before = steps.filter((each) => each <= step).length;
  const index = Math.max(0, before - 1);
  const codes = array.bytes.peek(index);
  if (!codes) {
    array.bytes.load(index).then(changed, failed);
    return null;
  }
  const { positions } = spec;
  const queries = array.rows / (layers.length * heads.length);
  const values = new Float64Array(queries * positions);
  const of = inLayers.length * inHeads.length;
  for (const layer of inLayers) {
    for (const head of inHeads) {
      const from = (layer * heads.length + head) * values.length;
      for (let at = 0; at < values.length; at++) values[at] += array.table[codes[from + at]] / of;
    }
  }
  return { step: steps[index], values, queries, of };
}
