// What a reader chooses in a pane by clicking in it.

import type { SampleSpec } from "../document/types";
import type { Subject } from "../measure/subject";
import { type PaneState, type Store, togglePin } from "../state/state";

export class Choosing {
  constructor(
    private readonly store: Store,
    private readonly index: number,
  ) {}

  get pane(): PaneState {
    return this.store.state.panes[this.index];
  }

  /** Opens where sinks are, or at the mean where none were found; a step that was asked for stays. */
  settle(place: Subject | null, { layer_numbers, head_numbers }: SampleSpec): void {
    const found = place
      ? { layer: layer_numbers[place.layer], head: head_numbers[place.head], pins: [place.position] }
      : {};
    if (place && this.index === 0 && this.store.state.step === 0) this.store.update({ step: place.step });
    this.store.updatePane(this.index, { ...found, settled: true });
  }

  /** Pins a key as the one to begin with, unless the reader was sooner. */
  pinFirst(position: number): void {
    const pins = this.pane.pins.length > 0 || position < 0 ? this.pane.pins : [position];
    this.store.updatePane(this.index, { pins, pinning: false });
  }

  step(step: number): void {
    this.store.update({ step });
  }

  /** Pins a position, or takes the pin out. */
  togglePin(position: number): void {
    this.store.updatePane(this.index, { pins: togglePin(this.pane.pins, position) });
  }

  /** Pins a position and leaves it pinned: a map may be clicked again and again. */
  pin(position: number): void {
    if (!this.pane.pins.includes(position)) this.togglePin(position);
  }

  /** Picks a layer and head by their numbers; picking them again gives the mean back. */
  row(layer: number, head: number | null): void {
    const same = this.pane.layer === layer && (head === null || this.pane.head === head);
    this.store.updatePane(this.index, same ? { layer: null, head: null } : { layer, head });
  }
}
