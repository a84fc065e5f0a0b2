// The second pane less the first, drawn under both: scores by step and position, and sinks in a map.

import { type Card, card, onWidth } from "../charts/card";
import { captioned, fileName, save, standalone } from "../charts/saving";
import { differenceShades } from "../charts/shading";
import { StepChart } from "../charts/step_chart";
import { StepMap } from "../charts/step_map";
import type { ThemeColours } from "../charts/theme_colours";
import { highest } from "../measure/profile";
import { SCALE_LABELS } from "../sinks/scales";
import { BarHost } from "./bar_host";
import { placeName } from "./captions";
import type { Context } from "./context";
import { sinksPerMap } from "./curves";
import { el, setText } from "./element";
import { short } from "./numbers";
import type { Subject } from "./pointing";

interface Differences {
  steps: number;
  positions: number;
  scores: Float64Array;
  sinks: Float64Array;
}

/** Where both have a number; elsewhere NaN. */
export function differences(first: Subject, second: Subject): Differences {
  const [one, other] = [first.sample.spec, second.sample.spec];
  const steps = Math.min(one.steps, other.steps);
  const positions = Math.min(one.positions, other.positions);
  const scores = new Float64Array(steps * positions);
  for (let at = 0; at < scores.length; at++) {
    const [step, position] = [Math.floor(at / positions), at % positions];
    const before = first.derived.scores[step * one.positions + position];
    scores[at] = second.derived.scores[step * other.positions + position] - before;
  }
  const [before, after] = [sinksPerMap(first.derived), sinksPerMap(second.derived)];
  return { steps, positions, scores, sinks: Float64Array.from({ length: steps }, (_, at) => after[at] - before[at]) };
}

export class Difference {
  readonly root: HTMLElement;
  private readonly maps: Card;
  private readonly lines: Card;
  private readonly map: StepMap;
  private readonly chart: StepChart;
  private readonly bar = new BarHost();
  private shown: Differences | null = null;
  private caption: string[] = [];
  private drawn: unknown[] = [];
  private colours: ThemeColours | null = null;
  private step = 0;

  constructor({ store, tip }: Context) {
    const hover = (lines: string[] | null, event: PointerEvent): void => {
      if (lines) tip.show(lines, event.clientX, event.clientY);
      else tip.hide();
    };
    const pick = (step: number): void => store.update({ step });
    this.maps = card("Difference in received attention", "difference", (format) => {
      this.save("difference", this.map.drawing(), this.bar.copy(), format);
    });
    this.map = new StepMap(this.maps.plot, "", {
      pick,
      hover: (step, y, event) => hover(step === null ? null : this.told(step, this.map.positionAt(y)), event),
    });
    this.maps.foot.append(this.bar.root);
    this.lines = card("Difference in sinks in a map", "difference-counts", (format) => {
      this.save("difference-counts", standalone(this.chart.frame.root, this.colours!.paper), null, format);
    });
    this.chart = new StepChart(this.lines.plot, "", 150, {
      pick,
      hover: (step, _y, event) => hover(step === null ? null : this.told(step, null), event),
    });
    for (const [one, chart] of [[this.maps, this.map] as const, [this.lines, this.chart] as const]) {
      onWidth(one.plot, (width) => {
        chart.resize(width);
        chart.frame.moveTo(this.step);
      });
    }
    this.root = el("section", { class: "differences", "aria-label": "Differences" }, this.maps.root, this.lines.root);
  }

  /** `names`: of the two samples, the first one first. */
  show(first: Subject, second: Subject, names: readonly string[], step: number, colours: ThemeColours): void {
    const key = [first.derived, second.derived, colours, ...names];
    this.step = step;
    if (key.some((part, index) => part !== this.drawn[index])) {
      this.drawn = key;
      this.colours = colours;
      this.draw(first, second, names, colours);
    }
    for (const chart of [this.map, this.chart]) chart.frame.moveTo(Math.min(step, (this.shown?.steps ?? 1) - 1));
  }

  private draw(first: Subject, second: Subject, names: readonly string[], colours: ThemeColours): void {
    const found = differences(first, second);
    this.shown = found;
    const { steps, positions, scores } = found;
    const most = highest(scores.map(Math.abs), 0);
    const shades = differenceShades(most);
    const palette = colours.differences;
    const none = new Uint8Array(scores.length);
    const frame = { steps, positions };
    this.map.show({ ...frame, frame, sample: null, scores, sinks: none, pins: [], shades, palette, colours });
    this.bar.show(shades, palette, `difference, ${SCALE_LABELS[first.derived.scale]}`, colours);
    this.chart.show({ steps, series: [{ values: found.sinks, style: "line-0" }], yLabel: "sinks", signed: true });
    const place = [first, second].map(placeName);
    const where = place[0] === place[1] ? `Both in ${place[0]}.` : `First in ${place[0]}; second in ${place[1]}.`;
    const less = `${names[1]} less ${names[0]}.`;
    setText(this.lines.note, less);
    setText(this.maps.note, `${less} ${where} At the same step and position; hatched where only one has a key.`);
    const told = `largest ${short(most)}`;
    this.map.frame.root.setAttribute("aria-label", `Difference of received attention by step and position, ${told}.`);
    this.chart.frame.root.setAttribute("aria-label", "Difference of sinks in a map by step.");
    this.caption = [
      `${less} ${where}`,
      `${first.derived.rule?.describe() ?? "no rule"}; ${SCALE_LABELS[first.derived.scale]}`,
    ];
  }

  private told(step: number, position: number | null): string[] {
    const { shown } = this;
    if (!shown || step >= shown.steps) return [`step ${step}`];
    if (position === null) return [`step ${step}`, `sinks in a map: ${signed(shown.sinks[step])}`];
    return [`step ${step}, position ${position}`, `score: ${signed(shown.scores[step * shown.positions + position])}`];
  }

  private save(name: string, drawing: SVGSVGElement, bar: SVGSVGElement | null, format: "png" | "svg"): void {
    const lines = ["Difference of two samples", ...this.caption];
    void save(captioned(drawing, { lines, bar, colours: this.colours! }), fileName("sinkscope", name), format);
  }
}

function signed(value: number): string {
  return value > 0 ? `+${short(value)}` : short(value);
}
