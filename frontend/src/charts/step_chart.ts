// A line chart over steps: sinks in a map, the place of the strongest key, scores of pinned tokens.

import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { svg } from "../page/element";
import { highest } from "../measure/profile";
import { MARGIN, StepFrame, type StepEvents } from "./step_frame";

export interface Series {
  values: ArrayLike<number>;
  /** Which of the styles `line-0` ... `line-4`, or `cut` for the value that a sink has to pass. */
  style: string;
  dots?: boolean;
}

export interface ChartData {
  steps: number;
  series: readonly Series[];
  yLabel: string;
  /** The axis ends here or above; without it, at the highest value. */
  most?: number;
  /** Differences: the axis goes as far below 0 as above. */
  signed?: boolean;
  /** Positions: whole numbers, 0 at the top, this many. */
  positions?: number;
  /** Lines across, at positions: the end of the prompt. */
  across?: readonly number[];
}

export class StepChart {
  readonly frame: StepFrame;
  private width = 0;
  private data: ChartData | null = null;

  constructor(
    host: HTMLElement,
    label: string,
    private readonly height: number,
    events: StepEvents,
  ) {
    this.frame = new StepFrame(host, label, events);
  }

  resize(width: number): void {
    this.width = width;
    this.draw();
  }

  show(data: ChartData): void {
    this.data = data;
    this.draw();
  }

  private draw(): void {
    if (!this.data || this.width === 0) return;
    const { frame, data } = this;
    frame.layout(this.width, this.height, data.steps);
    const y = this.vertical(data);
    frame.drawLeft(y, data.yLabel, data.positions !== undefined);
    const shape = line<number>(
      (_, step) => frame.x(step),
      (value) => y(value),
    ).defined((value) => !Number.isNaN(value));
    const drawn: SVGElement[] = (data.across ?? []).map((at) =>
      svg("line", { class: "across", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y(at), y2: y(at) }),
    );
    for (const series of data.series) {
      const values = Array.from(series.values);
      const d = shape(values);
      if (d) drawn.push(svg("path", { class: `line ${series.style}`, d }));
      if (series.dots || data.steps === 1) drawn.push(...this.dots(values, y, series.style));
    }
    frame.marks.replaceChildren(...drawn);
  }

  private dots(values: number[], y: (value: number) => number, style: string): SVGElement[] {
    const radius = Math.max(1.4, Math.min(3, this.frame.innerWidth / values.length / 2.6));
    return values.flatMap((value, step) =>
      Number.isNaN(value)
        ? []
        : [svg("circle", { class: `dot ${style}`, cx: this.frame.x(step), cy: y(value), r: radius })],
    );
  }

  private vertical(data: ChartData): ReturnType<typeof scaleLinear<number, number>> {
    const bottom = this.height - MARGIN.bottom;
    if (data.positions !== undefined) return scaleLinear([-0.5, data.positions - 0.5], [MARGIN.top, bottom]);
    const top = Math.max(data.most ?? 0, ...data.series.map((series) => highest(series.values, 0)));
    const most = top > 0 ? top : 1;
    return scaleLinear([data.signed ? -most : 0, most], [bottom, MARGIN.top]).nice(4);
  }
}
