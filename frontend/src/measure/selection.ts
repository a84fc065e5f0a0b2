// Which rows of a step are looked at: a layer or all, a head or all, the queries of a group.

import type { Sample } from "../document/sample";
import { ALL } from "../sinks/groups";

export interface Selection {
  group: string;
  /** Index of the layer, or null for all. */
  layer: number | null;
  /** Index of the head, or null for all. Groups are averaged over heads, so they have none. */
  head: number | null;
}

export function selectionKey(selection: Selection): string {
  return `${selection.group}/${selection.layer ?? "mean"}/${selection.head ?? "mean"}`;
}

/** Heads of a row array: the recorder averages groups over heads. */
export function headsOf(sample: Sample, group: string): number {
  return group === ALL ? sample.spec.heads : 1;
}

/** Indices of the chosen rows among layer x head (or layer), without heads that a layer lacks. */
export function chosenRows(sample: Sample, selection: Selection): number[] {
  const heads = headsOf(sample, selection.group);
  const head = heads === 1 ? null : selection.head;
  const { layers, layer_heads, head_numbers } = sample.spec;
  const rows: number[] = [];
  for (let row = 0; row < layers * heads; row++) {
    const layer = Math.floor(row / heads);
    const inLayer = selection.layer === null || layer === selection.layer;
    const there = selection.group !== ALL || !layer_heads || head_numbers[row % heads] < layer_heads[layer];
    if (inLayer && there && (head === null || row % heads === head)) rows.push(row);
  }
  return rows;
}
