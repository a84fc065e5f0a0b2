// The layer x head map of a pane with its picker of what it shows.

import { type Card, card, onWidth } from "../charts/card";
import { BarHost } from "./bar_host";
import { GridMap } from "../charts/grid_map";
import type { SampleSpec } from "../document/types";
import { METRIC_LABELS, type Metric } from "../measure/layer_heads";
import { highest } from "../measure/profile";
import { selectionKey } from "../measure/selection";
import { ALL } from "../sinks/groups";
import type { ChartEvents } from "./chart_events";
import { el, setOptions, setText } from "./element";
import { type LayerView, metricValues, offeredMetrics, peakOf, shadesOf } from "./layer_metric";
import { short } from "./numbers";

export interface LayerEvents {
  row(layer: number, head: number | null): void;
  metric(metric: Metric): void;
}

const KIND = { rows: "layer", columns: "head", upward: true, widestCell: 112, tallestCell: 56 };

export class LayerPanel {
  readonly card: Card;
  private readonly map: GridMap;
  private readonly metric = el("select", { "aria-label": "What the layer by head map shows", autocomplete: "off" });
  private readonly bar = new BarHost();
  private values: Float64Array = new Float64Array();
  private spec: SampleSpec | null = null;
  private shown: Metric = "strongest";
  private planned: unknown[] = [];
  private drawn: unknown[] = [];

  constructor(
    events: ChartEvents,
    private readonly choices: LayerEvents,
  ) {
    this.card = card("Layers and heads", "layers-heads", (format) => {
      events.save("Layers and heads", "layers-heads", this.map.drawing(), this.bar.copy(), format);
    });
    this.card.head.append(this.metric);
    this.map = new GridMap(this.card.plot, "layer-heads", KIND, {
      pick: (layer, head) => this.pick(layer, head),
      attend: (layer, head, x, y) => events.lines(layer === null ? null : this.lines(layer, head), x, y),
    });
    this.card.foot.append(this.bar.root);
    onWidth(this.card.plot, (width) => this.map.resize(width));
    this.metric.addEventListener("change", () => choices.metric(this.metric.value as Metric));
  }

  /** First half: works the values out and tells the highest there has been, which the shades of all panes go up to. */
  plan(view: LayerView): number {
    const { model, derived, step, metric, pin } = view;
    const { selection, scale, rule } = derived;
    // While a sweep runs only what is over all steps changes, and this map is of one step.
    const key = [model, selectionKey(selection), rule?.describe(), scale, step, metric, pin];
    if (key.some((part, index) => part !== this.planned[index])) {
      const rows = model.rows(selection.group, step);
      if (!rows) {
        if (model !== this.planned[0]) this.clear();
        return 0;
      }
      this.planned = key;
      this.spec = model.sample.spec;
      const offered = offeredMetrics(view);
      this.shown = offered.includes(metric) ? metric : "strongest";
      setOptions(
        this.metric,
        offered.map((each) => [each, METRIC_LABELS[each]]),
        this.shown,
      );
      this.values = metricValues(this.shown, view, rows);
    }
    return peakOf(this.shown, view, this.values);
  }

  draw(view: LayerView, peak: number): void {
    const { derived, step, shading, colours } = view;
    const key = [this.values, peak, shading, colours, selectionKey(derived.selection)];
    if (!this.spec || key.every((part, index) => part === this.drawn[index])) return;
    this.drawn = key;
    this.card.plot.style.visibility = "";
    const { selection } = derived;
    const heads = selection.group === ALL ? this.spec.head_numbers : [];
    const shades = shadesOf(this.shown, view, peak);
    this.map.show({
      rows: this.spec.layer_numbers,
      columns: heads,
      values: this.values,
      shades,
      palette: colours.palette,
      colours,
      row: selection.layer,
      column: heads.length > 0 ? selection.head : null,
    });
    this.bar.show(shades, colours.palette, METRIC_LABELS[this.shown], colours);
    this.describe(step);
  }

  /** Nothing of another sample stays in view while this one's step is not there. */
  private clear(): void {
    this.planned = [];
    this.drawn = [];
    this.spec = null;
    this.card.plot.style.visibility = "hidden";
    setText(this.card.note, "reading …");
  }

  private describe(step: number): void {
    const at = this.values.indexOf(highest(this.values, NaN));
    const place = this.name(Math.floor(at / this.map.columns), at % this.map.columns);
    const best = at < 0 ? "no values" : `highest ${short(this.values[at])} in ${place}`;
    setText(this.card.note, `At step ${step}; ${best}. Click a cell to look at its map alone, again for the mean.`);
    const label = `Layers by heads at step ${step}: ${METRIC_LABELS[this.shown]}, ${best}. Arrows move, Enter picks.`;
    this.map.root.setAttribute("aria-label", label);
  }

  private get averaged(): boolean {
    return this.spec !== null && this.spec.heads > 1 && this.map.columns === 1;
  }

  private name(layer: number, head: number): string {
    const { layer_numbers, head_numbers } = this.spec!;
    return `layer ${layer_numbers[layer]}, ${this.averaged ? "mean of heads" : `head ${head_numbers[head]}`}`;
  }

  private lines(layer: number, head: number): string[] {
    if (!this.spec) return [];
    const value = this.values[layer * this.map.columns + head];
    return [this.name(layer, head), `${METRIC_LABELS[this.shown]}: ${short(value)}`];
  }

  private pick(layer: number, head: number): void {
    const { layer_numbers, head_numbers } = this.spec!;
    this.choices.row(layer_numbers[layer], this.averaged ? null : head_numbers[head]);
  }
}
