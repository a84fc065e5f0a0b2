// A card with curves over steps.

import { type Card, card, onWidth } from "../charts/card";
import { standalone } from "../charts/saving";
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
      const drawing = standalone(this.chart.frame.root, events.paper());
      events.save(`${title}. ${this.curves?.note ?? ""}`, name, drawing, null, format);
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

  /** `steps` and `most`: where the axes end, for panes side by side. */
  show(curves: Curves, steps: number, most: number): void {
    this.curves = curves;
    this.chart.show({ ...curves.data, steps, most });
    this.chart.frame.root.setAttribute("aria-label", curves.label);
    setText(this.card.note, curves.note);
  }

  moveTo(step: number): void {
    this.step = step;
    this.chart.frame.moveTo(step);
  }
}
