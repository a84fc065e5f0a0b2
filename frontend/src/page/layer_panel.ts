// The layer x head map of a pane with its picker of what it shows.

import { type Card, card, onWidth } from "../charts/card";
import { LayerMap } from "../charts/layer_map";
import { save } from "../charts/saving";
import type { SampleSpec } from "../document/types";
import { METRIC_LABELS, type Metric } from "../measure/layer_heads";
import { highest } from "../measure/profile";
import { selectionKey } from "../measure/selection";
import { ALL } from "../sinks/groups";
import type { ChartEvents } from "./chart_events";
import { el, setOptions, setText } from "./element";
import { type LayerView, MetricShades, metricValues, offeredMetrics } from "./layer_metric";
import { short } from "./numbers";

export interface LayerEvents {
  row(layer: number, head: number | null): void;
  metric(metric: Metric): void;
}

const MOVES: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

export class LayerPanel {
  readonly card: Card;
  private readonly map: LayerMap;
  private readonly metric = el("select", { "aria-label": "What the layer by head map shows", autocomplete: "off" });
  private readonly shades = new MetricShades();
  private cell: [number, number] | null = null;
  private values: Float64Array = new Float64Array();
  private spec: SampleSpec | null = null;
  private shown: Metric = "strongest";
  private drawn: unknown[] = [];

  constructor(
    private readonly events: ChartEvents,
    private readonly choices: LayerEvents,
  ) {
    this.card = card("Layers and heads", "layers-heads", (format) => {
      void save(this.map.drawing(), events.named("layers-heads"), format);
    });
    this.card.foot.append(this.metric);
    this.map = new LayerMap(this.card.plot, {
      pick: (layer, head) => this.pick(layer, head),
      hover: (layer, head, event) => {
        events.lines(layer === null ? null : this.lines(layer, head), event.clientX, event.clientY);
      },
    });
    onWidth(this.card.plot, (width) => this.map.resize(width));
    this.metric.addEventListener("change", () => choices.metric(this.metric.value as Metric));
    this.map.root.addEventListener("keydown", (event) => this.onKey(event));
    this.map.root.addEventListener("blur", () => this.moveTo(null));
  }

  show(view: LayerView): void {
    const { model, derived, step, metric, pin, shading, colours } = view;
    const { selection, scale, rule } = derived;
    // While a sweep runs only what is over all steps changes, and this map is of one step.
    const key = [model, selectionKey(selection), rule?.describe(), scale, step, metric, pin, shading, colours];
    if (key.every((part, index) => part === this.drawn[index])) return;
    const rows = model.rows(selection.group, step);
    if (!rows) {
      if (model !== this.drawn[0]) this.clear();
      return;
    }
    this.drawn = key;
    this.card.plot.style.visibility = "";
    this.spec = model.sample.spec;
    const offered = offeredMetrics(view);
    this.shown = offered.includes(metric) ? metric : "strongest";
    setOptions(
      this.metric,
      offered.map((each) => [each, METRIC_LABELS[each]]),
      this.shown,
    );
    this.values = metricValues(this.shown, view, rows);
    const heads = selection.group === ALL ? this.spec.head_numbers : [];
    this.map.show({
      layers: this.spec.layer_numbers,
      heads,
      values: this.values,
      shades: this.shades.of(this.shown, view, this.values),
      colours,
      layer: selection.layer,
      head: heads.length > 0 ? selection.head : null,
    });
    this.describe(step);
  }

  /** Nothing of another sample stays in view while this one's step is not there. */
  private clear(): void {
    this.drawn = [];
    this.spec = null;
    this.card.plot.style.visibility = "hidden";
    setText(this.card.note, "reading …");
  }

  private describe(step: number): void {
    const at = this.values.indexOf(highest(this.values, NaN));
    const place = this.name(Math.floor(at / this.map.columns), at % this.map.columns);
    const best = at < 0 ? "no values" : `highest ${short(this.values[at])} in ${place}`;
    setText(this.card.note, `${METRIC_LABELS[this.shown]} at step ${step}; ${best}`);
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

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.spec) return;
    const by = MOVES[event.key];
    if (by) {
      const [layer, head] = this.cell ?? [-by[0], -by[1]];
      const inside = (at: number, count: number): number => Math.min(count - 1, Math.max(0, at));
      this.moveTo([inside(layer + by[0], this.spec.layers), inside(head + by[1], this.map.columns)]);
    } else if (event.key === "Enter" && this.cell) this.pick(...this.cell);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private moveTo(cell: [number, number] | null): void {
    this.cell = cell;
    this.map.moveCell(cell);
    if (cell) this.events.lines(this.lines(...cell), ...this.map.placeOf(...cell));
    else this.events.lines(null, 0, 0);
  }
}
