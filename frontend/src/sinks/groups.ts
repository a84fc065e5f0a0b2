// Groups of queries: the recorded atoms part a pass's queries, unions are their means weighted by their sizes.

import type { SampleSpec } from "../document/types";

export const ATOMS = ["prompt", "committed", "block-committed", "block-masked", "later"] as const;
export const ALL = "all";

const UNIONS: Record<string, readonly string[]> = {
  masked: ["block-masked", "later"],
  block: ["block-committed", "block-masked"],
  "all-committed": ["committed", "block-committed"],
};

/** Groups that can be asked for, given the atoms that were recorded. */
export function offered(recorded: readonly string[]): string[] {
  const unions = Object.keys(UNIONS).filter((union) => UNIONS[union].some((atom) => recorded.includes(atom)));
  return [ALL, ...unions, ...recorded];
}

/** Groups that can be asked for in a sample. */
export function offeredIn({ arrays, groups }: SampleSpec): string[] {
  const recorded = arrays["received_by_group"] && arrays["queries"] ? groups : [];
  return recorded.length > 0 ? offered(recorded) : [ALL];
}

/** Indices, among the recorded atoms, of those that make up a group. */
export function members(group: string, recorded: readonly string[]): number[] {
  const atoms = UNIONS[group] ?? [group];
  return atoms.map((atom) => recorded.indexOf(atom)).filter((index) => index >= 0);
}
