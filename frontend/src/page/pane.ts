// One sample on the page: pickers, the canvas as text, charts and tables, all of the same selection.

import { type Card, card } from "../charts/card";
import { fileName, save } from "../charts/saving";
import type { Shades } from "../charts/shading";
import type { ThemeColours } from "../charts/theme_colours";
import type { SampleSpec } from "../document/types";
import type { Derived } from "../measure/derived";
import type { SinkRule } from "../sinks/rule";
import type { State } from "../state/state";
import type { ChartEvents } from "./chart_events";
import { Choosing } from "./choosing";
import type { Context } from "./context";
import { el, setText } from "./element";
import { LayerPanel } from "./layer_panel";
import { type Opened, Opening } from "./opening";
import { PaneCharts } from "./pane_charts";
import { Pickers, pickedSelection } from "./pickers";
import { Pointing, type Subject } from "./pointing";
import { Statistics } from "./statistics";
import { statusText } from "./status";
import { stepSentence } from "./summaries";
import { Tables } from "./tables";
import { tokenDrawing } from "./token_drawing";
import { TokenView } from "./token_view";

export class Pane {
  readonly root: HTMLElement;
  derived: Derived | null = null;
  refusal: string | null = null;
  private readonly status = el("p", { class: "status" });
  private readonly statistics = new Statistics();
  private readonly pickers: Pickers;
  private readonly tokens: TokenView;
  private readonly tokenCard: Card;
  private readonly charts: PaneCharts;
  private readonly layers: LayerPanel;
  private readonly tables: Tables;
  private readonly opening: Opening;
  private readonly choosing: Choosing;
  private readonly pointing: Pointing;
  private opened: Opened | null = null;
  private paper = "white";
  /** What the tables show. */
  private tabled: Derived | null = null;
  private step = 0;

  constructor(index: number, context: Context) {
    const { store, library } = context;
    const label = index === 0 ? "First sample" : "Second sample";
    this.opening = new Opening(context);
    this.choosing = new Choosing(store, index);
    this.pointing = new Pointing(context.tip, context.live);
    const toggle = (position: number): void => this.choosing.togglePin(position);
    const events = this.chartEvents(context);
    this.pickers = new Pickers(library.document, label, (patch) => store.updatePane(index, patch));
    this.tokens = new TokenView({ pin: toggle, attend: (at, cell) => this.pointing.token(at, cell) });
    this.tokenCard = card("Canvas", "canvas", (format) => {
      void save(tokenDrawing(this.tokens.root, this.paper), events.named("canvas"), format);
    });
    this.tokenCard.plot.append(this.tokens.root);
    this.charts = new PaneCharts(events, toggle);
    const row = (layer: number, head: number | null): void => this.choosing.row(layer, head);
    this.layers = new LayerPanel(events, { row, metric: (metric) => store.update({ metric }) });
    this.tables = new Tables(toggle);
    this.root = el("section", { class: "pane", "aria-label": label }, ...this.parts());
  }

  get spec(): SampleSpec {
    return this.opening.spec(this.choosing.pane);
  }

  /** First half of a redraw: works out what there is to show. */
  prepare(state: State, rule: SinkRule): void {
    const { spec } = this;
    const { pane } = this.choosing;
    this.step = Math.min(state.step, Math.max(0, spec.steps - 1));
    this.pickers.show(pane, spec);
    this.opened = this.opening.of(pane);
    this.derived = null;
    this.refusal = null;
    this.root.classList.toggle("waiting", this.opened === null || spec.steps === 0);
    setText(this.status, statusText(spec, state.step, this.opened === null));
    if (!this.opened || spec.steps === 0) return;
    const selection = pickedSelection(pane, spec);
    this.refusal = this.opened.model.refusal(rule, selection.group);
    this.derived = this.opened.deriver.derive(selection, this.refusal ? null : rule, state.scale, this.step);
  }

  /** Second half: draws it, in the shades that all panes share. */
  draw(state: State, shades: Shades, colours: ThemeColours): void {
    const { derived, opened, step } = this;
    if (!derived || !opened) return;
    this.paper = colours.paper;
    const { model, lexicon } = opened;
    const { sample } = model;
    const { pins } = this.choosing.pane;
    const subject: Subject = { sample, lexicon, derived, step };
    this.tokens.show(subject, pins, shades, colours.palette);
    this.charts.show(subject, pins, shades, colours);
    const pin = pins.length > 0 ? pins[pins.length - 1] : null;
    this.layers.show({ model, derived, step, metric: state.metric, pin, shading: state.shading, colours });
    this.statistics.show(derived, step);
    if (this.tabled !== derived) this.tables.show(sample, lexicon, derived);
    this.tabled = derived;
    this.pointing.follow(subject);
  }

  /** The step in a sentence, for the live line. */
  sentence(): string {
    const { derived, opened, step } = this;
    if (!derived || !opened) return "";
    return stepSentence({ sample: opened.model.sample, lexicon: opened.lexicon, derived, step });
  }

  private parts(): HTMLElement[] {
    const columns = [
      el("div", { class: "column" }, ...this.charts.cards.map((each) => each.root)),
      el("div", { class: "column" }, this.layers.card.root, this.tables.root),
    ];
    const wide = el("div", { class: "wide" }, el("div", { class: "columns" }, ...columns));
    return [this.pickers.root, this.status, this.statistics.root, this.tokenCard.root, wide];
  }

  private chartEvents({ library }: Context): ChartEvents {
    const { choosing, pointing } = this;
    return {
      step: (step) => choosing.step(step),
      pin: (position) => choosing.pin(position),
      cell: (step, position, x, y) => pointing.cell(step, position, x, y),
      lines: (lines, x, y) => pointing.lines(lines, x, y),
      named: (chart) => {
        const { name } = library.document.traces[choosing.pane.trace];
        return fileName("sinkscope", name, this.spec.id, chart, `step${this.step}`);
      },
      paper: () => this.paper,
    };
  }
}
