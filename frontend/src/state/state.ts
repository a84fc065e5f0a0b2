// Everything that decides what the page shows. It is plain data, it is in the address, and only `Store` changes it.

import type { Metric } from "../measure/layer_heads";
import type { Quantity } from "../measure/quantities";
import { ALL } from "../sinks/groups";
import { RULES } from "../sinks/registry";
import type { Scale } from "../sinks/scales";

export interface PaneState {
  trace: number;
  sample: number;
  /** Numbers as the trace has them, not indices; null is the mean. */
  layer: number | null;
  head: number | null;
  queries: string;
  /** False until the page has chosen where to open, or the reader where to look. */
  settled: boolean;
  /** Pinned positions, in the order they were pinned. */
  pins: number[];
  /** True until its strongest sink has been pinned: it is known once all steps are. */
  pinning: boolean;
}

export type Theme = "auto" | "light" | "dark";
export type Shading = "log" | "linear";

export interface State {
  step: number;
  /** One, or two to compare. */
  panes: PaneState[];
  rule: string;
  /** The number each rule was given, by the rule's name. */
  settings: Record<string, number>;
  scale: Scale;
  shading: Shading;
  metric: Metric;
  quantity: Quantity;
  theme: Theme;
}

export const MOST_PINS = 5;

export function freshPane(trace = 0, sample = 0): PaneState {
  return { trace, sample, layer: null, head: null, queries: ALL, settled: false, pins: [], pinning: false };
}

export function freshState(): State {
  return {
    step: 0,
    panes: [freshPane()],
    rule: RULES[0].name,
    settings: Object.fromEntries(RULES.map((kind) => [kind.name, kind.initial])),
    scale: "sum",
    shading: "log",
    metric: "strongest",
    quantity: "confidence",
    theme: "auto",
  };
}

/** Pins a position, or takes the pin out; the oldest goes when there are too many. */
export function togglePin(pins: readonly number[], position: number): number[] {
  if (pins.includes(position)) return pins.filter((pin) => pin !== position);
  return [...pins, position].slice(-MOST_PINS);
}

export class Store {
  private listeners: (() => void)[] = [];

  constructor(public state: State) {}

  update(patch: Partial<State>): void {
    this.state = { ...this.state, ...patch };
    for (const listener of this.listeners) listener();
  }

  updatePane(index: number, patch: Partial<PaneState>): void {
    const panes = this.state.panes.map((pane, at) => (at === index ? { ...pane, ...patch } : pane));
    this.update({ panes });
  }

  subscribe(listener: () => void): void {
    this.listeners.push(listener);
  }
}
