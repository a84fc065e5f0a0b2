// The layer x head map of the step in view.

import { axisLeft, axisTop } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { el, svg } from "../page/element";
import { paint } from "./raster";
import { pixels, standalone } from "./saving";
import type { Shades } from "./shading";
import type { ThemeColours } from "./theme_colours";

const MARGIN = { top: 32, right: 14, bottom: 6, left: 46 };
const LARGEST_CELL = 38;
const FLATTEST_CELL = 7;
const MOST_HEIGHT = 420;

export interface LayerData {
  layers: readonly number[];
  /** Empty where the heads were averaged. */
  heads: readonly number[];
  /** layer x head */
  values: Float64Array;
  shades: Shades;
  colours: ThemeColours;
  /** Indices of what is chosen; null is the mean. */
  layer: number | null;
  head: number | null;
}

export interface LayerEvents {
  pick(layer: number, head: number): void;
  hover(layer: number | null, head: number, event: PointerEvent): void;
}

export class LayerMap {
  readonly root = svg("svg", { class: "layer-heads", role: "img", tabindex: 0, "aria-roledescription": "heat map" });
  private readonly cells = el("canvas", { class: "cells", "aria-hidden": "true" });
  private readonly top = svg("g", { class: "axis" });
  private readonly left = svg("g", { class: "axis" });
  private readonly labels = [
    svg("text", { class: "axis-label" }, "head"),
    svg("text", { class: "axis-label" }, "layer"),
  ];
  private readonly chosen = svg("rect", { class: "chosen" });
  private readonly cellCursor = svg("rect", { class: "cell-cursor", visibility: "hidden" });
  private width = 0;
  private shape = "";
  private data: LayerData | null = null;

  constructor(host: HTMLElement, events: LayerEvents) {
    this.root.append(this.top, this.left, ...this.labels, this.chosen, this.cellCursor);
    host.append(el("div", { class: "layers" }, this.cells, this.root));
    this.root.addEventListener("click", (event) => events.pick(...this.cellAt(event)));
    this.root.addEventListener("pointermove", (event) => events.hover(...this.cellAt(event), event));
    this.root.addEventListener("pointerleave", (event) => events.hover(null, 0, event));
  }

  resize(width: number): void {
    this.width = width;
    this.shape = "";
    if (this.data) this.show(this.data);
  }

  /** Called at every step: only the picture is painted anew, unless the shape changed. */
  show(data: LayerData): void {
    this.data = data;
    if (this.width === 0) return;
    const shape = JSON.stringify([data.layers, data.heads, this.width]);
    if (shape !== this.shape) this.drawAxes();
    this.shape = shape;
    const columns = this.columns;
    const value = (head: number, layer: number): number => data.values[layer * columns + head];
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = this.size;
    paint(this.cells, { columns, rows: data.layers.length, value }, data.shades, data.colours.palette, [
      width * ratio,
      height * ratio,
    ]);
    this.outline(this.chosen, data.layer, data.head);
    this.chosen.setAttribute("visibility", data.layer === null && data.head === null ? "hidden" : "visible");
  }

  moveCell(cell: [number, number] | null): void {
    this.cellCursor.setAttribute("visibility", cell === null ? "hidden" : "visible");
    if (cell) this.outline(this.cellCursor, cell[0], cell[1]);
  }

  placeOf(layer: number, head: number): [number, number] {
    const { left, top } = this.root.getBoundingClientRect();
    const [w, h] = this.cellSize;
    return [left + MARGIN.left + (head + 0.5) * w, top + MARGIN.top + (layer + 0.5) * h];
  }

  drawing(): SVGSVGElement {
    const { colours } = this.data!;
    const copy = standalone(this.root, colours.paper);
    const [width, height] = this.size;
    copy.children[0].after(...pixels(this.cells, { x: MARGIN.left, y: MARGIN.top, width, height }, colours));
    return copy;
  }

  get columns(): number {
    return Math.max(1, this.data?.heads.length ?? 1);
  }

  private get size(): [number, number] {
    const rows = this.data?.layers.length ?? 1;
    const room = Math.max(1, this.width - MARGIN.left - MARGIN.right);
    const cell = Math.min(LARGEST_CELL, room / this.columns);
    const width = this.columns === 1 ? Math.min(room, 3 * LARGEST_CELL) : cell * this.columns;
    // Many layers make flat cells, so that the map stays in view.
    const high = Math.min(this.columns === 1 ? LARGEST_CELL : cell, Math.max(FLATTEST_CELL, MOST_HEIGHT / rows));
    return [width, high * rows];
  }

  private get cellSize(): [number, number] {
    const [width, height] = this.size;
    return [width / this.columns, height / (this.data?.layers.length ?? 1)];
  }

  private cellAt(event: MouseEvent): [number, number] {
    const { left, top } = this.root.getBoundingClientRect();
    const [w, h] = this.cellSize;
    const inside = (at: number, count: number): number => Math.min(count - 1, Math.max(0, Math.floor(at)));
    const layer = inside((event.clientY - top - MARGIN.top) / h, this.data?.layers.length ?? 1);
    return [layer, inside((event.clientX - left - MARGIN.left) / w, this.columns)];
  }

  /** Around a cell, a whole layer (head null) or a whole head (layer null). */
  private outline(rectangle: SVGRectElement, layer: number | null, head: number | null): void {
    const [width, height] = this.size;
    const [w, h] = this.cellSize;
    const place = {
      x: MARGIN.left + (head ?? 0) * w,
      y: MARGIN.top + (layer ?? 0) * h,
      width: head === null ? width : w,
      height: layer === null ? height : h,
    };
    for (const [name, value] of Object.entries(place)) rectangle.setAttribute(name, String(value));
  }

  private drawAxes(): void {
    const { layers, heads } = this.data!;
    const [width, height] = this.size;
    const [high, wide] = [MARGIN.top + height + MARGIN.bottom, MARGIN.left + width + MARGIN.right];
    this.root.setAttribute("width", String(wide));
    this.root.setAttribute("height", String(high));
    Object.assign(this.cells.style, {
      left: `${MARGIN.left}px`,
      top: `${MARGIN.top}px`,
      width: `${width}px`,
      height: `${height}px`,
    });
    const x = scaleLinear([-0.5, this.columns - 0.5], [MARGIN.left, MARGIN.left + width]);
    const y = scaleLinear([-0.5, layers.length - 0.5], [MARGIN.top, MARGIN.top + height]);
    const whole = (count: number, most: number): number[] => {
      const every = Math.ceil(count / Math.max(1, most));
      return Array.from({ length: Math.ceil(count / every) }, (_, index) => index * every);
    };
    const named = (numbers: readonly number[]) => (index: unknown) => String(numbers[Number(index)] ?? "mean");
    const across = axisTop(x)
      .tickValues(whole(this.columns, width / 22))
      .tickFormat(named(heads));
    const down = axisLeft(y)
      .tickValues(whole(layers.length, height / 16))
      .tickFormat(named(layers));
    this.top.setAttribute("transform", `translate(0 ${MARGIN.top})`);
    this.left.setAttribute("transform", `translate(${MARGIN.left} 0)`);
    select(this.top).call(across.tickSize(3).tickPadding(3));
    select(this.left).call(down.tickSize(3).tickPadding(3));
    this.labels[0].setAttribute("transform", `translate(${MARGIN.left + width / 2} 10)`);
    this.labels[1].setAttribute("transform", `translate(10 ${MARGIN.top + height / 2}) rotate(-90)`);
    for (const label of this.labels) label.setAttribute("text-anchor", "middle");
  }
}
