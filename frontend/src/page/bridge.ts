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

export function bridge(store: Store, document: PageDocument): void {
  if (window.parent === window) return;
  const { parent } = window;
  let known = "";
  let timer = 0;
  const shared = (): Shared => {
    const { layer, head, pins } = store.state.panes[0];
    return { step: store.state.step, layer, head, selected: pins };
  };
  const tell = (): void => {
    const text = JSON.stringify(shared());
    if (!store.state.panes[0].settled || text === known) return;
    known = text;
    parent.postMessage({ sinkscope: shared() }, "*");
  };
  store.subscribe(() => {
    clearTimeout(timer);
    timer = window.setTimeout(tell, PAUSE);
  });
  window.addEventListener("message", (event: MessageEvent<{ sinkscope?: Partial<Shared> } | null>) => {
    const wanted = event.source === parent ? event.data?.sinkscope : undefined;
    if (!wanted) return;
    const { trace, sample } = store.state.panes[0];
    const spec = document.traces[trace].samples[sample];
    const now = shared();
    const isWhole = (value: unknown): value is number => Number.isInteger(value) && Number(value) >= 0;
    const named = (value: unknown, numbers: number[], otherwise: number | null): number | null =>
      value === null || numbers.includes(value as number) ? (value as number | null) : otherwise;
    const pins = Array.isArray(wanted.selected) ? wanted.selected : now.selected;
    const next: Shared = {
      step: isWhole(wanted.step) ? wanted.step : now.step,
      layer: named(wanted.layer, spec.layer_numbers, now.layer),
      head: named(wanted.head, spec.head_numbers, now.head),
      selected: pins.filter((pin) => isWhole(pin) && pin < spec.positions).slice(-MOST_PINS),
    };
    if (JSON.stringify(next) === JSON.stringify(now)) {
      // What the sample lacks is answered by what is shown.
      known = "";
      tell();
      return;
    }
    const { step, layer, head, selected } = next;
    store.update({ step });
    store.updatePane(0, { layer, head, pins: selected, settled: true });
  });
}
