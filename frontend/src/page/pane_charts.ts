// The charts of a pane that run over steps: the map, the track of the strongest key, counts, pinned scores, quantities.

import type { Card } from "../charts/card";
import type { ThemeColours } from "../charts/theme_colours";
import { QUANTITY_LABELS, type Quantity, offeredQuantities } from "../measure/quantities";
import type { ChartEvents } from "./chart_events";
import type { Common } from "./common";
import { type Curves, countCurves, pinnedCurves, quantityCurves, trackCurves } from "./curves";
import { el, setOptions } from "./element";
import { LinePanel } from "./line_panel";
import { MapPanel } from "./map_panel";
import { Pins } from "./pins";
import type { Subject } from "./pointing";

const CHARTS = ["pinned", "each", "track", "counts"] as const;
type Chart = (typeof CHARTS)[number];

export class PaneCharts {
  private readonly map: MapPanel;
  private readonly panels: Record<Chart, LinePanel>;
  private readonly pins: Pins;
  private readonly quantity = el("select", { "aria-label": "What is plotted of each step", autocomplete: "off" });
  private curves: Record<Chart, Curves> | null = null;
  private planned: unknown[] = [];
  private drawn: unknown[] = [];

  constructor(events: ChartEvents, unpin: (position: number) => void, quantity: (quantity: Quantity) => void) {
    this.map = new MapPanel(events);
    this.panels = {
      pinned: new LinePanel("Pinned tokens", "pinned", 150, events),
      each: new LinePanel("Each step", "each", 150, events),
      track: new LinePanel("Strongest key", "track", 150, events),
      counts: new LinePanel("Sinks in a map", "counts", 150, events),
    };
    this.pins = new Pins(unpin);
    this.panels.pinned.card.foot.append(this.pins.root);
    this.panels.each.card.head.append(this.quantity);
    this.quantity.addEventListener("change", () => quantity(this.quantity.value as Quantity));
  }

  /** The colour bar of canvas and map, for a picture that is saved. */
  bar(): SVGSVGElement | null {
    return this.map.bar.copy();
  }

  /** The map, then the others in the order in which they stand. */
  get cards(): Card[] {
    return [this.map.card, ...CHARTS.map((name) => this.panels[name].card)];
  }

  /** First half: what there is to draw. Gives the highest value of each chart, which the axes of all panes go up to. */
  plan({ sample, model, derived }: Subject, pins: readonly number[], wanted: Quantity): Record<string, number> {
    const offered = offeredQuantities(model);
    const quantity = offered.includes(wanted) ? wanted : (offered[0] ?? "confidence");
    const key = [derived, pins.join(), quantity, model.measures.revision];
    if (!this.curves || key.some((part, index) => part !== this.planned[index])) {
      this.planned = key;
      this.curves = {
        pinned: pinnedCurves(sample, derived, pins),
        each: quantityCurves(model, derived, quantity),
        track: trackCurves(sample, derived),
        counts: countCurves(sample, derived),
      };
      setOptions(
        this.quantity,
        offered.map((name) => [name, QUANTITY_LABELS[name]]),
        quantity,
      );
      this.panels.each.card.root.classList.toggle("empty", offered.length === 0);
      this.panels.pinned.card.root.classList.toggle("empty", pins.length === 0);
    }
    return Object.fromEntries(CHARTS.map((name) => [name, this.curves![name].top]));
  }

  /** Second half: draws what changed; at another step only the lines at the step move. */
  draw(subject: Subject, pins: readonly number[], common: Common, colours: ThemeColours): void {
    const { sample, lexicon, derived, step } = subject;
    const { shades, frame, tops } = common;
    const axes = [frame.steps, frame.positions, ...CHARTS.map((name) => tops[name])];
    const key = [this.curves, shades.kind, shades.low, shades.high, colours, ...axes];
    if (this.curves && key.some((part, index) => part !== this.drawn[index])) {
      const { scores, sinks } = derived;
      const { steps, positions } = sample.spec;
      const { palette } = colours;
      this.map.show({ sample, steps, positions, frame, scores, sinks, pins, shades, palette, colours }, derived);
      for (const name of CHARTS) {
        const { data } = this.curves[name];
        const placed = data.positions === undefined ? data : { ...data, positions: frame.positions };
        this.panels[name].show({ ...this.curves[name], data: placed }, frame.steps, tops[name]);
      }
    }
    this.drawn = key;
    for (const panel of [this.map, ...CHARTS.map((name) => this.panels[name])]) panel.moveTo(step);
    this.pins.show(sample, lexicon, derived, pins, step);
  }
}
