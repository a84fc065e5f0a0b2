// The charts of a pane that run over steps: the map, the track of the strongest key, counts, and pinned scores.

import type { Card } from "../charts/card";
import type { Shades } from "../charts/shading";
import type { ThemeColours } from "../charts/theme_colours";
import type { ChartEvents } from "./chart_events";
import { countCurves, pinnedCurves, trackCurves } from "./curves";
import { LinePanel } from "./line_panel";
import { MapPanel } from "./map_panel";
import { Pins } from "./pins";
import type { Subject } from "./pointing";

export class PaneCharts {
  private readonly map: MapPanel;
  private readonly track: LinePanel;
  private readonly counts: LinePanel;
  private readonly pinned: LinePanel;
  private readonly pins: Pins;
  private drawn: unknown[] = [];

  constructor(events: ChartEvents, unpin: (position: number) => void) {
    this.map = new MapPanel(events);
    this.track = new LinePanel("Strongest key", "track", 150, events);
    this.counts = new LinePanel("Sinks in a map", "counts", 120, events);
    this.pinned = new LinePanel("Pinned tokens", "pinned", 170, events);
    this.pins = new Pins(unpin);
    this.pinned.card.foot.append(this.pins.root);
  }

  /** In the order in which they stand under each other. */
  get cards(): Card[] {
    return [this.map, this.pinned, this.track, this.counts].map((panel) => panel.card);
  }

  /** Draws what changed; at another step only the lines at the step move. */
  show(subject: Subject, pins: readonly number[], shades: Shades, colours: ThemeColours): void {
    const { sample, lexicon, derived, step } = subject;
    const key = [derived, pins.join(), shades.kind, shades.low, shades.high, colours];
    if (key.some((part, index) => part !== this.drawn[index])) {
      const { scores, sinks } = derived;
      this.map.show({ sample, scores, sinks, pins, shades, colours }, derived);
      this.track.show(trackCurves(sample, derived));
      this.counts.show(countCurves(sample, derived));
      this.pinned.show(pinnedCurves(sample, derived, pins));
      this.pinned.card.root.classList.toggle("empty", pins.length === 0);
    }
    this.drawn = key;
    for (const panel of [this.map, this.track, this.counts, this.pinned]) panel.moveTo(step);
    this.pins.show(sample, lexicon, derived, pins, step);
  }
}
