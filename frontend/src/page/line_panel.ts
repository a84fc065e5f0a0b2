// A card with curves over steps.

import { type Card, card, onWidth } from "../charts/card";
import { save, standalone } from "../charts/saving";
import { StepChart } from "../charts/step_chart";
import type { ChartEvents } from "./chart_events";
import type { Curves } from "./curves";
import { setText } from "./element";

export class LinePanel {
  readonly card: Card;
  private readonly chart: StepChart;
  private curves: Curves | null = null;
  private step = 0;

  constructor(title: string, name: string, height: number, events: ChartEvents) {
    this.card = card(title, name, (format) => {
      void save(standalone(this.chart.frame.root, events.paper()), events.named(name), format);
    });
    this.chart = new StepChart(this.card.plot, "", height, {
      pick: (step) => events.step(step),
      hover: (step, _y, event) => {
        events.lines(step === null || !this.curves ? null : this.curves.lines(step), event.clientX, event.clientY);
      },
    });
    onWidth(this.card.plot, (width) => {
      this.chart.resize(width);
      this.moveTo(this.step);
    });
  }

  show(curves: Curves): void {
    this.curves = curves;
    this.chart.show(curves.data);
    this.chart.frame.root.setAttribute("aria-label", curves.label);
    setText(this.card.note, curves.note);
  }

  moveTo(step: number): void {
    this.step = step;
    this.chart.frame.moveTo(step);
  }
}
