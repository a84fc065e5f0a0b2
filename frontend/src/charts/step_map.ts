// The position x step map: the picture of cells, rings at sinks, ticks at commits, the edges of blocks and prompt.

import { scaleLinear } from "d3-scale";
import type { Sample } from "../document/sample";
import { MOST, SOME } from "../measure/profile";
import { el, svg } from "../page/element";
import type { Palette } from "./colours";
import { type Stroke, box, circle, segment, stroke, strokePaths } from "./ink";
import { paint } from "./raster";
import { pixels, standalone } from "./saving";
import type { Shades } from "./shading";
import { MARGIN, type StepEvents, StepFrame } from "./step_frame";
import type { ThemeColours } from "./theme_colours";

export interface Extent {
  steps: number;
  positions: number;
}

export interface MapData {
  /** Of which commits, blocks and the end of the prompt are marked; a difference has none. */
  sample: Sample | null;
  steps: number;
  positions: number;
  /** As many steps and positions as the axes have room for. */
  frame: Extent;
  /** (step, position) */
  scores: Float64Array;
  /** `MOST` or `SOME` where rows hold a sink. */
  sinks: Uint8Array;
  pins: readonly number[];
  shades: Shades;
  palette: Palette;
  colours: ThemeColours;
}

export class StepMap {
  readonly frame: StepFrame;
  private readonly cells = el("canvas", { class: "cells", "aria-hidden": "true" });
  private readonly marks = el("canvas", { class: "ink", "aria-hidden": "true" });
  private readonly cellCursor = svg("rect", { class: "cell-cursor", visibility: "hidden" });
  private width = 0;
  private data: MapData | null = null;
  private strokes: Stroke[] = [];

  constructor(host: HTMLElement, label: string, events: StepEvents) {
    this.frame = new StepFrame(host, label, events);
    this.frame.root.setAttribute("aria-roledescription", "heat map");
    this.frame.root.before(this.cells, this.marks);
    this.frame.root.append(this.cellCursor);
  }

  resize(width: number): void {
    this.width = width;
    this.draw();
  }

  show(data: MapData): void {
    this.data = data;
    this.draw();
  }

  positionAt(y: number): number {
    const positions = this.data?.positions ?? 1;
    return Math.min(positions - 1, Math.max(0, Math.round(this.vertical.invert(y))));
  }

  /** Where a cell is in the page's coordinates, for the tip. */
  placeOf(step: number, position: number): [number, number] {
    const { left, top } = this.frame.root.getBoundingClientRect();
    return [left + this.frame.x(step), top + this.vertical(position)];
  }

  moveCell(step: number, position: number | null): void {
    const [width, height] = this.cellSize;
    this.cellCursor.setAttribute("visibility", position === null ? "hidden" : "visible");
    if (position === null) return;
    const [w, h] = [Math.max(5, width), Math.max(5, height)];
    this.cellCursor.setAttribute("x", String(this.frame.x(step) - w / 2));
    this.cellCursor.setAttribute("y", String(this.vertical(position) - h / 2));
    this.cellCursor.setAttribute("width", String(w));
    this.cellCursor.setAttribute("height", String(h));
  }

  drawing(): SVGSVGElement {
    const { data, frame } = this;
    const copy = standalone(frame.root, data!.colours.paper);
    const [width, height] = this.painted;
    const place = { x: MARGIN.left, y: MARGIN.top, width, height };
    copy.children[0].after(...pixels(this.cells, place, data!.colours), ...strokePaths(this.strokes));
    return copy;
  }

  private get vertical(): ReturnType<typeof scaleLinear<number, number>> {
    const positions = this.data?.frame.positions ?? 1;
    return scaleLinear([-0.5, positions - 0.5], [MARGIN.top, MARGIN.top + this.frame.innerHeight]);
  }

  /** Room of the steps and positions that this one has. */
  private get painted(): [number, number] {
    const [width, height] = this.cellSize;
    return [width * (this.data?.steps ?? 1), height * (this.data?.positions ?? 1)];
  }

  private get cellSize(): [number, number] {
    return [this.frame.innerWidth / this.frame.steps, this.frame.innerHeight / (this.data?.frame.positions ?? 1)];
  }

  private draw(): void {
    if (!this.data || this.width === 0) return;
    const { frame, data } = this;
    const { steps, positions } = data;
    frame.layout(this.width, mapHeight(data.frame.positions, this.width), data.frame.steps);
    frame.drawLeft(this.vertical, "position", true);
    const ratio = window.devicePixelRatio || 1;
    const value = (step: number, position: number): number => data.scores[step * positions + position];
    const [width, height] = this.painted;
    paint(this.cells, { columns: steps, rows: positions, value }, data.shades, data.palette, [
      width * ratio,
      height * ratio,
    ]);
    const place = { left: MARGIN.left, top: MARGIN.top, width, height };
    for (const [name, size] of Object.entries(place)) this.cells.style.setProperty(name, `${size}px`);
    const told = data.sample ? [...this.edges(data.sample, data), ...this.commits(data.sample, data)] : [];
    this.strokes = [...told, ...this.rings(data), ...this.pinned(data)];
    Object.assign(this.marks.style, { width: `${frame.width}px`, height: `${frame.height}px` });
    stroke(this.marks, [frame.width, frame.height], this.strokes);
  }

  private rings({ sinks, positions, colours }: MapData): Stroke[] {
    const { x } = this.frame;
    const y = this.vertical;
    const cell = Math.min(...this.cellSize);
    const radius = Math.min(5, Math.max(1.8, cell / 2 - 0.5));
    const width = cell < 6 ? 1.1 : 1.5;
    const found: Stroke[] = [];
    for (const [mark, part] of [
      [SOME, 0.6],
      [MOST, 1],
    ]) {
      let d = "";
      for (let at = 0; at < sinks.length; at++) {
        if (sinks[at] === mark) d += circle(x(Math.floor(at / positions)), y(at % positions), part * radius);
      }
      if (d === "") continue;
      found.push({ d, colour: colours.paper, width: 2.2 * width }, { d, colour: colours.sink, width: part * width });
    }
    return found;
  }

  /** A bar at the right of a cell whose token was committed after that step. */
  private commits(sample: Sample, { colours }: MapData): Stroke[] {
    const y = this.vertical;
    let d = "";
    sample.committedAt.forEach((step, position) => {
      if (step >= 0)
        d += segment(this.frame.x(step + 0.5), y(position - 0.5), this.frame.x(step + 0.5), y(position + 0.5));
    });
    return d === ""
      ? []
      : [
          { d, colour: colours.paper, width: 3 },
          { d, colour: colours.commit, width: 2 },
        ];
  }

  /** The end of the prompt across, and a box around every block while it is the current one. */
  private edges(sample: Sample, { colours }: MapData): Stroke[] {
    const { steps, prompt_length, positions, bidirectional } = sample.spec;
    const { x } = this.frame;
    const y = this.vertical;
    const found: Stroke[] = [];
    if (prompt_length > 0 && prompt_length < positions) {
      const at = y(prompt_length - 0.5);
      found.push({ d: segment(x(-0.5), at, x(steps - 0.5), at), colour: colours.soft, width: 1 });
    }
    const { blockStart, blockStop } = sample;
    let d = "";
    for (let step = 0, from = 0; bidirectional && blockStart && blockStop && step < steps; step++) {
      const same =
        step + 1 < steps && blockStart[step + 1] === blockStart[from] && blockStop[step + 1] === blockStop[from];
      if (same) continue;
      if (blockStop[from] > blockStart[from]) {
        d += box(x(from - 0.5), y(blockStart[from] - 0.5), x(step + 0.5), y(blockStop[from] - 0.5));
      }
      from = step + 1;
    }
    if (d !== "") found.push({ d, colour: colours.soft, width: 1, dash: [3, 3] });
    return found;
  }

  /** A small mark at the right edge of every pinned position. */
  private pinned({ pins, colours }: MapData): Stroke[] {
    const right = MARGIN.left + this.frame.innerWidth;
    const d = pins.map((pin) => segment(right + 2, this.vertical(pin), right + 10, this.vertical(pin))).join("");
    return d === "" ? [] : [{ d, colour: colours.accent, width: 3 }];
  }
}

function mapHeight(positions: number, width: number): number {
  const room = MARGIN.top + MARGIN.bottom;
  const most = Math.max(240, Math.min(560, width * 0.8));
  return room + Math.round(Math.min(most, Math.max(120, positions * 9)));
}
