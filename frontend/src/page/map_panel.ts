// The card of the position x step map: pointer and keys move through its cells.

import { type Card, card, onWidth } from "../charts/card";
import { type MapData, StepMap } from "../charts/step_map";
import type { Sample } from "../document/sample";
import type { Derived } from "../measure/derived";
import { SCALE_LABELS } from "../sinks/scales";
import type { ChartEvents } from "./chart_events";
import { BarHost } from "./bar_host";
import { scoreName } from "./details";
import { setText } from "./element";
import { mapMarks, mapSummary } from "./summaries";

export class MapPanel {
  readonly card: Card;
  private readonly map: StepMap;
  readonly bar = new BarHost();
  private positions = 1;
  private step = 0;
  /** Where the keys have moved to. */
  private position: number | null = null;

  constructor(private readonly events: ChartEvents) {
    this.card = card("Received attention by step", "map", (format) => {
      events.save("Received attention by step", "map", this.map.drawing(), this.bar.copy(), format);
    });
    this.map = new StepMap(this.card.plot, "", {
      pick: (step) => events.step(step),
      tap: (y) => events.pin(this.map.positionAt(y)),
      hover: (step, y, event) => events.cell(step, this.map.positionAt(y), event.clientX, event.clientY),
    });
    this.card.foot.append(this.bar.root);
    onWidth(this.card.plot, (width) => {
      this.map.resize(width);
      this.moveTo(this.step);
    });
    this.map.frame.root.addEventListener("keydown", (event) => this.onKey(event));
    this.map.frame.root.addEventListener("blur", () => this.moveCell(null));
  }

  show(data: MapData & { sample: Sample }, derived: Derived): void {
    const { positions, sample, shades, palette, colours } = data;
    this.positions = positions;
    this.map.show(data);
    this.bar.show(shades, palette, `${scoreName(derived)}, ${SCALE_LABELS[derived.scale]}`, colours);
    this.map.frame.root.setAttribute("aria-label", mapSummary(sample, derived));
    setText(this.card.note, mapMarks(sample, derived));
  }

  moveTo(step: number): void {
    const moved = step !== this.step;
    this.step = step;
    this.map.frame.moveTo(step);
    if (this.position !== null && moved) this.moveCell(this.position);
  }

  /** Up and down move the cell; left and right are the step's, here as everywhere. */
  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowDown") this.moveCell(Math.min(this.positions - 1, (this.position ?? -1) + 1));
    else if (event.key === "ArrowUp") this.moveCell(Math.max(0, (this.position ?? 1) - 1));
    else if (event.key === "Enter" && this.position !== null) this.events.pin(this.position);
    else return;
    event.preventDefault();
  }

  private moveCell(position: number | null): void {
    this.position = position;
    this.map.moveCell(this.step, position);
    if (position === null) this.events.cell(null, 0, 0, 0);
    else this.events.cell(this.step, position, ...this.map.placeOf(this.step, position));
  }
}
