// What all charts over steps have in common: the same margins, so that steps stand under each other; a step axis; a
// line at the step in view; clicking and dragging that move the step.

import { axisBottom, axisLeft } from "d3-axis";
import { type ScaleLinear, scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { el, svg } from "../page/element";
import { short } from "../page/numbers";

export const MARGIN = { top: 10, right: 14, bottom: 24, left: 46 };

/** How far a pointer may stray, in pixels, and still be said not to have moved. */
const STILL = 5;

type Linear = ScaleLinear<number, number>;

export interface StepEvents {
  /** A step was clicked or dragged to. */
  pick(step: number): void;
  /** A click or tap without a movement; `y` is in the plot, for charts whose height means something. */
  tap?(y: number): void;
  /** The pointer is over a step (null: it left). */
  hover(step: number | null, y: number, event: PointerEvent): void;
}

/** Round steps and the last one, without those too near to it. */
function withLast(ticks: number[], last: number): number[] {
  const apart = ticks.length > 1 ? 0.7 * (ticks[1] - ticks[0]) : 1;
  return [...ticks.filter((tick) => tick >= 0 && last - tick >= apart), last];
}

export class StepFrame {
  readonly root: SVGSVGElement;
  readonly marks = svg("g", { class: "marks" });
  x: Linear = scaleLinear();
  width = 0;
  height = 0;
  steps = 1;
  private readonly bottom = svg("g", { class: "axis" });
  private readonly left = svg("g", { class: "axis" });
  private readonly cursor = svg("line", { class: "cursor" });
  private readonly stepLabel = svg("text", { class: "axis-label", "text-anchor": "end" }, "step");
  private readonly leftLabel = svg("text", { class: "axis-label" });

  constructor(host: HTMLElement, label: string, events: StepEvents) {
    this.root = svg("svg", { class: "over-steps", role: "img", tabindex: 0, "aria-label": label });
    this.root.append(this.bottom, this.left, this.marks, this.cursor, this.stepLabel, this.leftLabel);
    host.append(el("div", { class: "layers" }, this.root));
    this.listen(events);
  }

  get innerWidth(): number {
    return Math.max(1, this.width - MARGIN.left - MARGIN.right);
  }

  get innerHeight(): number {
    return Math.max(1, this.height - MARGIN.top - MARGIN.bottom);
  }

  layout(width: number, height: number, steps: number): void {
    Object.assign(this, { width, height, steps });
    this.x = scaleLinear([-0.5, steps - 0.5], [MARGIN.left, MARGIN.left + this.innerWidth]);
    this.root.setAttribute("width", String(width));
    this.root.setAttribute("height", String(height));
    const ticks = withLast(this.x.ticks(Math.max(2, this.innerWidth / 70)).filter(Number.isInteger), steps - 1);
    const axis = axisBottom(this.x)
      .tickValues(ticks)
      .tickFormat((step) => String(step))
      .tickSize(4)
      .tickPadding(4);
    this.bottom.setAttribute("transform", `translate(0 ${height - MARGIN.bottom})`);
    select(this.bottom).call(axis);
    this.stepLabel.setAttribute("x", String(MARGIN.left - 8));
    this.stepLabel.setAttribute("y", String(height - MARGIN.bottom + 16));
    this.cursor.setAttribute("y1", String(MARGIN.top));
    this.cursor.setAttribute("y2", String(height - MARGIN.bottom));
  }

  /** The axis at the left; `whole` for positions. */
  drawLeft(scale: Linear, label: string, whole: boolean): void {
    const count = Math.max(2, Math.min(8, this.innerHeight / 28));
    const ticks = scale.ticks(count).filter((tick) => !whole || Number.isInteger(tick));
    const axis = axisLeft(scale)
      .tickValues(ticks)
      .tickFormat((tick) => short(Number(tick)))
      .tickSize(4)
      .tickPadding(4);
    this.left.setAttribute("transform", `translate(${MARGIN.left} 0)`);
    select(this.left).call(axis);
    this.leftLabel.setAttribute("transform", `translate(10 ${MARGIN.top + this.innerHeight / 2}) rotate(-90)`);
    this.leftLabel.setAttribute("text-anchor", "middle");
    this.leftLabel.textContent = label;
  }

  moveTo(step: number): void {
    const at = String(this.x(step));
    this.cursor.setAttribute("x1", at);
    this.cursor.setAttribute("x2", at);
  }

  private stepOf(event: PointerEvent): number {
    const at = event.clientX - this.root.getBoundingClientRect().left;
    return Math.min(this.steps - 1, Math.max(0, Math.round(this.x.invert(at))));
  }

  private listen(events: StepEvents): void {
    const { root } = this;
    const y = (event: PointerEvent): number => event.clientY - root.getBoundingClientRect().top;
    let press: { x: number; y: number; moved: boolean } | null = null;
    root.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !event.isPrimary) return;
      root.setPointerCapture(event.pointerId);
      press = { x: event.clientX, y: event.clientY, moved: false };
      // A finger that comes down may be about to scroll.
      if (event.pointerType !== "touch") events.pick(this.stepOf(event));
    });
    root.addEventListener("pointermove", (event) => {
      if (press && event.isPrimary) {
        const [right, down] = [event.clientX - press.x, event.clientY - press.y];
        press.moved ||= Math.hypot(right, down) > STILL;
        const scrolls = event.pointerType === "touch" && Math.abs(right) <= Math.abs(down);
        if (press.moved && !scrolls) events.pick(this.stepOf(event));
      }
      events.hover(this.stepOf(event), y(event), event);
    });
    root.addEventListener("pointerup", (event) => {
      if (press && event.isPrimary && !press.moved) {
        events.pick(this.stepOf(event));
        events.tap?.(y(event));
      }
      press = null;
    });
    root.addEventListener("pointercancel", () => (press = null));
    root.addEventListener("pointerleave", (event) => events.hover(null, 0, event));
  }
}
