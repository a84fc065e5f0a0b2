// A page inside a widget of a notebook: it tells the step, the layer and head and what is pinned, and is told them.

import type { PageDocument } from "../document/types";
import { MOST_PINS, type Store } from "../state/state";

interface Shared {
  step: number;
  layer: number | null;
  head: number | null;
  selected: number[];
}

/** How long a notebook may lag behind a slider that is dragged. */
const PAUSE = 60;

const isWhole = (value: unknown): value is number => Number.isInteger(value) && Number(value) >= 0;
const same = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other);

export function bridge(store: Store, document: PageDocument): void {
  if (window.parent === window) return;
  const { parent } = window;
  /** What the notebook has. */
  let known: Partial<Shared> = {};
  let timer = 0;
  const shared = (): Shared => {
    const { layer, head, pins } = store.state.panes[0];
    return { step: store.state.step, layer, head, selected: pins };
  };
  /** Tells what the notebook does not have; of two changes at once neither takes the other back. */
  const tell = (): void => {
    if (!store.state.panes[0].settled) return;
    const now = shared();
    const names = (Object.keys(now) as (keyof Shared)[]).filter((name) => !same(now[name], known[name]));
    known = now;
    if (names.length === 0) return;
    parent.postMessage({ sinkscope: Object.fromEntries(names.map((name) => [name, now[name]])) }, "*");
  };
  const soon = (): void => {
    clearTimeout(timer);
    timer = window.setTimeout(tell, PAUSE);
  };
  store.subscribe(soon);
  window.addEventListener("message", (event: MessageEvent<{ sinkscope?: Partial<Shared> } | null>) => {
    const wanted = event.source === parent ? event.data?.sinkscope : undefined;
    if (!wanted) return;
    const { trace, sample } = store.state.panes[0];
    const spec = document.traces[trace].samples[sample];
    const now = shared();
    const named = (value: unknown, numbers: number[], otherwise: number | null): number | null =>
      value === null || numbers.includes(value as number) ? (value as number | null) : otherwise;
    const pins = Array.isArray(wanted.selected) ? wanted.selected : now.selected;
    known = wanted;
    store.update({ step: isWhole(wanted.step) ? wanted.step : now.step });
    store.updatePane(0, {
      layer: named(wanted.layer, spec.layer_numbers, now.layer),
      head: named(wanted.head, spec.head_numbers, now.head),
      pins: pins.filter((pin) => isWhole(pin) && pin < spec.positions).slice(-MOST_PINS),
      settled: true,
    });
    // What the sample lacks is answered by what is shown.
    soon();
  });
}
