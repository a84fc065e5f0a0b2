// A map of two depths at one step: layers by heads, or queries by keys. Pointer and keys move through its cells.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { el, svg } from "../page/element";
import type { Palette } from "./colours";
import { paint } from "./raster";
import { pixels, standalone } from "./saving";
import type { Shades } from "./shading";
import type { ThemeColours } from "./theme_colours";

const MARGIN = { top: 6, right: 14, bottom: 34, left: 46 };
const FLATTEST_CELL = 7;
const MOST_HEIGHT = 420;

export interface GridKind {
  rows: string;
  columns: string;
  /** The first row is the lowest, as in the printed figures of layers. */
  upward: boolean;
  /** In pixels. */
  widestCell: number;
  tallestCell: number;
}

export interface GridData {
  /** Numbers of the rows and columns; no columns where they were averaged. */
  rows: readonly number[];
  columns: readonly number[];
  /** row x column */
  values: Float64Array;
  shades: Shades;
  palette: Palette;
  colours: ThemeColours;
  /** Indices of what is chosen: a cell, a row (column null), a column (row null) or nothing. */
  row: number | null;
  column: number | null;
}

export interface GridEvents {
  pick(row: number, column: number): void;
  /** Pointed at or walked to (row null: no longer), at this place of the window. */
  attend(row: number | null, column: number, x: number, y: number): void;
}

const MOVES: Record<string, [number, number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

export class GridMap {
  readonly root: SVGSVGElement;
  private readonly canvas = el("canvas", { class: "cells", "aria-hidden": "true" });
  private readonly bottom = svg("g", { class: "axis" });
  private readonly left = svg("g", { class: "axis" });
  private readonly labels: SVGTextElement[];
  private readonly chosen = svg("rect", { class: "chosen" });
  private readonly cellCursor = svg("rect", { class: "cell-cursor", visibility: "hidden" });
  private width = 0;
  private shape = "";
  private data: GridData | null = null;
  /** Where the keys have moved to. */
  private cell: [number, number] | null = null;

  constructor(
    host: HTMLElement,
    name: string,
    private readonly kind: GridKind,
    private readonly events: GridEvents,
  ) {
    this.root = svg("svg", { class: name, role: "img", tabindex: 0, "aria-roledescription": "heat map" });
    this.labels = [kind.columns, kind.rows].map((label) => svg("text", { class: "axis-label" }, label));
    this.root.append(this.bottom, this.left, ...this.labels, this.chosen, this.cellCursor);
    host.append(el("div", { class: "layers" }, this.canvas, this.root));
    this.root.addEventListener("click", (event) => events.pick(...this.cellAt(event)));
    this.root.addEventListener("pointermove", (event) => {
      events.attend(...this.cellAt(event), event.clientX, event.clientY);
    });
    this.root.addEventListener("pointerleave", () => events.attend(null, 0, 0, 0));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.root.addEventListener("blur", () => this.moveTo(null));
  }

  resize(width: number): void {
    this.width = width;
    this.shape = "";
    if (this.data) this.show(this.data);
  }

  /** Called at every step: only the picture is painted anew, unless the shape changed. */
  show(data: GridData): void {
    this.data = data;
    if (this.width === 0) return;
    const shape = JSON.stringify([data.rows, data.columns, this.width]);
    if (shape !== this.shape) this.drawAxes();
    this.shape = shape;
    const { columns } = this;
    const rows = data.rows.length;
    const value = (column: number, at: number): number => data.values[this.place(at) * columns + column];
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = this.size;
    paint(this.canvas, { columns, rows, value }, data.shades, data.palette, [width * ratio, height * ratio]);
    this.outline(this.chosen, data.row, data.column);
    this.chosen.setAttribute("visibility", data.row === null && data.column === null ? "hidden" : "visible");
  }

  drawing(): SVGSVGElement {
    const { colours } = this.data!;
    const copy = standalone(this.root, colours.paper);
    const [width, height] = this.size;
    copy.children[0].after(...pixels(this.canvas, { x: MARGIN.left, y: MARGIN.top, width, height }, colours));
    return copy;
  }

  get columns(): number {
    return Math.max(1, this.data?.columns.length ?? 1);
  }

  private get rows(): number {
    return this.data?.rows.length ?? 1;
  }

  /** From the top: rows that go upward are counted from below. */
  private place(row: number): number {
    return this.kind.upward ? this.rows - 1 - row : row;
  }

  private get size(): [number, number] {
    const { widestCell, tallestCell } = this.kind;
    const room = Math.max(1, this.width - MARGIN.left - MARGIN.right);
    const cell = Math.min(widestCell, room / this.columns);
    const width = this.columns === 1 ? Math.min(room, 3 * tallestCell) : cell * this.columns;
    // Many rows make flat cells, so that the map stays in view.
    const flattest = Math.min(FLATTEST_CELL, MOST_HEIGHT / this.rows);
    const high = Math.min(
      tallestCell,
      this.columns === 1 ? tallestCell : cell,
      Math.max(flattest, MOST_HEIGHT / this.rows),
    );
    return [width, high * this.rows];
  }

  private get cellSize(): [number, number] {
    const [width, height] = this.size;
    return [width / this.columns, height / this.rows];
  }

  private cellAt(event: MouseEvent): [number, number] {
    const { left, top } = this.root.getBoundingClientRect();
    const [w, h] = this.cellSize;
    const inside = (at: number, count: number): number => Math.min(count - 1, Math.max(0, Math.floor(at)));
    const row = inside((event.clientY - top - MARGIN.top) / h, this.rows);
    return [this.place(row), inside((event.clientX - left - MARGIN.left) / w, this.columns)];
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.data) return;
    const by = MOVES[event.key];
    if (by) {
      const down = this.kind.upward ? -by[0] : by[0];
      const inside = (at: number, count: number): number => Math.min(count - 1, Math.max(0, at));
      const [row, column] = this.cell ?? [this.place(0), 0];
      const moved = this.cell ? [row + down, column + by[1]] : [row, column];
      this.moveTo([inside(moved[0], this.rows), inside(moved[1], this.columns)]);
    } else if (event.key === "Enter" && this.cell) this.events.pick(...this.cell);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private moveTo(cell: [number, number] | null): void {
    this.cell = cell;
    this.cellCursor.setAttribute("visibility", cell === null ? "hidden" : "visible");
    if (!cell) {
      this.events.attend(null, 0, 0, 0);
      return;
    }
    this.outline(this.cellCursor, ...cell);
    const { left, top } = this.root.getBoundingClientRect();
    const [w, h] = this.cellSize;
    const [x, y] = [MARGIN.left + (cell[1] + 0.5) * w, MARGIN.top + (this.place(cell[0]) + 0.5) * h];
    this.events.attend(...cell, left + x, top + y);
  }

  private outline(rectangle: SVGRectElement, row: number | null, column: number | null): void {
    const [width, height] = this.size;
    const [w, h] = this.cellSize;
    const place = {
      x: MARGIN.left + (column ?? 0) * w,
      y: MARGIN.top + (row === null ? 0 : this.place(row)) * h,
      width: column === null ? width : w,
      height: row === null ? height : h,
    };
    for (const [name, value] of Object.entries(place)) rectangle.setAttribute(name, String(value));
  }

  private drawAxes(): void {
    const { rows, columns } = this.data!;
    const [width, height] = this.size;
    this.root.setAttribute("width", String(MARGIN.left + width + MARGIN.right));
    this.root.setAttribute("height", String(MARGIN.top + height + MARGIN.bottom));
    const place = { left: MARGIN.left, top: MARGIN.top, width, height };
    for (const [name, value] of Object.entries(place)) this.canvas.style.setProperty(name, `${value}px`);
    const x = scaleLinear([-0.5, this.columns - 0.5], [MARGIN.left, MARGIN.left + width]);
    const [top, bottom] = [MARGIN.top, MARGIN.top + height];
    const y = scaleLinear([-0.5, rows.length - 0.5], this.kind.upward ? [bottom, top] : [top, bottom]);
    const whole = (count: number, most: number): number[] => {
      const every = Math.ceil(count / Math.max(1, most));
      return Array.from({ length: Math.ceil(count / every) }, (_, index) => index * every);
    };
    const named = (numbers: readonly number[]) => (index: unknown) => String(numbers[Number(index)] ?? "mean");
    const across = axisBottom(x)
      .tickValues(whole(this.columns, width / 22))
      .tickFormat(named(columns));
    const up = axisLeft(y)
      .tickValues(whole(rows.length, height / 16))
      .tickFormat(named(rows));
    this.bottom.setAttribute("transform", `translate(0 ${bottom})`);
    this.left.setAttribute("transform", `translate(${MARGIN.left} 0)`);
    select(this.bottom).call(across.tickSize(3).tickPadding(3));
    select(this.left).call(up.tickSize(3).tickPadding(3));
    this.labels[0].setAttribute("transform", `translate(${MARGIN.left + width / 2} ${bottom + 29})`);
    this.labels[1].setAttribute("transform", `translate(10 ${MARGIN.top + height / 2}) rotate(-90)`);
    for (const label of this.labels) label.setAttribute("text-anchor", "middle");
  }
}
