// One sample on the page: pickers, the canvas as text, charts and tables, all of the same selection.

import { type Card, card } from "../charts/card";
import { captioned, fileName, save } from "../charts/saving";
import type { ThemeColours } from "../charts/theme_colours";
import type { SampleSpec } from "../document/types";
import { type Derived, leadingKey } from "../measure/derived";
import type { SinkRule } from "../sinks/rule";
import type { State } from "../state/state";
import { AttentionPanel } from "./attention_panel";
import { captionLines } from "./captions";
import type { ChartEvents } from "./chart_events";
import { Choosing } from "./choosing";
import type { Common } from "./common";
import type { Context } from "./context";
import { el, setText } from "./element";
import type { LayerView } from "./layer_metric";
import { LayerPanel } from "./layer_panel";
import { type Opened, Opening } from "./opening";
import { PaneCharts } from "./pane_charts";
import { Pickers, pickedSelection } from "./pickers";
import { Pointing, type Subject } from "./pointing";
import { Search } from "./search";
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
  private readonly status = el("p", { class: "status wide" });
  private readonly statistics = new Statistics();
  private readonly pickers: Pickers;
  private readonly tokens: TokenView;
  private readonly tokenCard: Card;
  private readonly charts: PaneCharts;
  private readonly layers: LayerPanel;
  private readonly attention: AttentionPanel;
  private readonly tables: Tables;
  private readonly opening: Opening;
  private readonly choosing: Choosing;
  private readonly pointing: Pointing;
  private opened: Opened | null = null;
  private colours: ThemeColours | null = null;
  /** What the tables show. */
  private tabled: Derived | null = null;
  private step = 0;

  constructor(
    index: number,
    private readonly context: Context,
  ) {
    const { store, library } = context;
    const label = index === 0 ? "First sample" : "Second sample";
    this.opening = new Opening(context);
    this.choosing = new Choosing(store, index);
    this.pointing = new Pointing(context.tip, context.live);
    const toggle = (position: number): void => this.choosing.togglePin(position);
    const events = this.chartEvents();
    this.pickers = new Pickers(library.document, label, (patch) => store.updatePane(index, patch));
    this.tokens = new TokenView({ pin: toggle, attend: (at, cell) => this.pointing.token(at, cell) });
    this.tokenCard = card("Canvas", "canvas", (format) => {
      events.save("Canvas", "canvas", tokenDrawing(this.tokens.root, events.paper()), this.charts.bar(), format);
    });
    this.tokenCard.head.append(new Search(this.tokens, context.redraw).root);
    this.tokenCard.plot.append(this.tokens.root);
    this.charts = new PaneCharts(events, toggle, (quantity) => store.update({ quantity }));
    const row = (layer: number, head: number | null): void => this.choosing.row(layer, head);
    this.layers = new LayerPanel(events, { row, metric: (metric) => store.update({ metric }) });
    this.attention = new AttentionPanel(events);
    this.tables = new Tables(toggle);
    this.root = el("section", { class: "pane", "aria-label": label }, ...this.parts());
    this.root.style.setProperty("--parts", String(this.root.children.length));
  }

  get spec(): SampleSpec {
    return this.opening.spec(this.choosing.pane);
  }

  /** What is drawn, where there is something. */
  get subject(): Subject | null {
    const { derived, opened, step } = this;
    if (!derived || !opened) return null;
    return { sample: opened.model.sample, model: opened.model, lexicon: opened.lexicon, derived, step };
  }

  /** First part of a redraw: works out what there is to show. */
  prepare(state: State, rule: SinkRule): void {
    const { spec } = this;
    const { pane } = this.choosing;
    this.step = Math.min(state.step, Math.max(0, spec.steps - 1));
    this.pickers.show(pane, spec);
    this.opened = this.opening.of(pane, rule, (place) => this.choosing.settle(place, spec));
    this.derived = null;
    this.refusal = null;
    this.root.classList.toggle("waiting", this.opened === null || spec.steps === 0);
    setText(this.status, statusText(spec, state.step, this.opened === null));
    if (!this.opened || spec.steps === 0) return;
    const selection = pickedSelection(pane, spec);
    this.refusal = this.opened.model.refusal(rule, selection.group);
    this.derived = this.opened.deriver.derive(selection, this.refusal ? null : rule, state.scale, this.step);
    if (pane.pinning && this.derived.complete) this.choosing.pinFirst(leadingKey(this.derived));
  }

  /** Second part: how high its charts go, so that all panes can have the same axes and colours. */
  plan(state: State, colours: ThemeColours): Pick<Common, "tops" | "peak"> {
    const { subject } = this;
    if (!subject) return { tops: {}, peak: 0 };
    const tops = this.charts.plan(subject, this.choosing.pane.pins, state.quantity);
    return { tops, peak: this.layers.plan(this.layerView(subject, state, colours)) };
  }

  /** Third part: draws it, on what all panes share. */
  draw(state: State, common: Common, colours: ThemeColours): void {
    const { subject } = this;
    if (!subject) return;
    this.colours = colours;
    const { pins } = this.choosing.pane;
    const view = this.layerView(subject, state, colours);
    this.tokens.show(subject, pins, common.shades, colours.palette);
    this.charts.draw(subject, pins, common, colours);
    this.layers.draw(view, common.peak);
    this.attention.card.root.hidden = !common.maps;
    this.attention.show(subject, view, this.context.redraw, (error) => this.context.failure.tell(error));
    this.statistics.show(subject.derived, this.step);
    if (this.tabled !== subject.derived) this.tables.show(subject.sample, subject.lexicon, subject.derived);
    this.tabled = subject.derived;
    this.pointing.follow(subject);
  }

  /** The step in a sentence, for the live line. */
  sentence(): string {
    return this.subject ? stepSentence(this.subject) : "";
  }

  private layerView({ model, derived, step }: Subject, state: State, colours: ThemeColours): LayerView {
    const { pins } = this.choosing.pane;
    const pin = pins.length > 0 ? pins[pins.length - 1] : null;
    return { model, derived, step, metric: state.metric, pin, shading: state.shading, colours };
  }

  /** One story: what the model saw, how that went over the steps, in which layers and heads, and then the details. */
  private parts(): HTMLElement[] {
    const [map, ...curves] = this.charts.cards.map((each) => each.root);
    const head = el("div", { class: "pane-head wide" }, this.pickers.root, this.statistics.root);
    for (const each of [this.tokenCard.root, map]) each.classList.add("wide");
    const details = [this.layers.card.root, this.attention.card.root, ...curves, ...this.tables.roots];
    return [head, this.status, this.tokenCard.root, map, ...details];
  }

  private chartEvents(): ChartEvents {
    const { choosing, pointing, context } = this;
    return {
      step: (step) => choosing.step(step),
      pin: (position) => choosing.pin(position),
      cell: (step, position, x, y) => pointing.cell(step, position, x, y),
      lines: (lines, x, y) => pointing.lines(lines, x, y),
      save: (title, chart, drawing, bar, format, step = this.step) => {
        if (!this.subject || !this.colours) return;
        const { name } = context.library.document.traces[choosing.pane.trace];
        const lines = captionLines(title, name, { ...this.subject, step }, choosing.pane);
        const file = fileName("sinkscope", name, this.spec.id, chart, `step${step}`);
        void save(captioned(drawing, { lines, bar, colours: this.colours }), file, format);
      },
      paper: () => this.colours?.paper ?? "white",
    };
  }
}
