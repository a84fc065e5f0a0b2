// The canvas as text: a cell a token, shaded by what it receives. Every cell keeps the room of its final token, so that
// nothing moves while steps go by. Only cells that changed are touched.

import type { Sample } from "../document/sample";
import type { Palette } from "../charts/colours";
import type { Shades } from "../charts/shading";
import { SOME } from "../measure/profile";
import { el } from "./element";
import { breaksLine, visible } from "./glyphs";
import type { Lexicon } from "./lexicon";
import type { Subject } from "./pointing";

/** What the cells of one step are drawn from. */
interface TokenStep {
  step: number;
  /** Scores and sinks of this step by position; NaN where no key exists. */
  scores: Float64Array;
  sinks: Uint8Array;
  /** False where the group has no query at this step, or where the step is still being read. */
  keysKnown: boolean;
  pins: readonly number[];
  shades: Shades;
  palette: Palette;
}

export interface TokenEvents {
  pin(position: number): void;
  /** Pointed at or walked to (null: no longer). */
  attend(position: number | null, cell: HTMLElement | null): void;
}

interface Cell {
  root: HTMLElement;
  text: HTMLElement;
  token: number;
  /** What is committed in it after the step. */
  coming: number | null;
  shade: number;
  name: string;
}

let views = 0;

export class TokenView {
  readonly root = el("ol", { class: "tokens", role: "listbox", tabindex: 0, "aria-multiselectable": "true" });
  private readonly prefix = `token-${views++}-`;
  private cells: Cell[] = [];
  private sample: Sample | null = null;
  private lexicon: Lexicon | null = null;
  private palette: Palette | null = null;
  private active = -1;
  private wanted = "";

  constructor(private readonly events: TokenEvents) {
    this.root.addEventListener("click", (event) => {
      const position = this.positionOf(event.target);
      if (position !== null) events.pin(position);
    });
    this.root.addEventListener("pointerover", (event) => this.attend(this.positionOf(event.target)));
    this.root.addEventListener("pointerleave", () => this.attend(null));
    this.root.addEventListener("blur", () => this.activate(-1));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
  }

  show({ sample, lexicon, derived, step }: Subject, pins: readonly number[], shades: Shades, palette: Palette): void {
    if (sample !== this.sample) this.build(sample, lexicon);
    if (palette !== this.palette) for (const cell of this.cells) cell.shade = NaN;
    this.palette = palette;
    const { positions } = sample.spec;
    const of = <T extends Float64Array | Uint8Array>(all: T): T =>
      all.subarray(step * positions, (step + 1) * positions) as T;
    const keysKnown = derived.overview.mean.done[step] === 1 && derived.keys[step] > 0;
    const at = { step, scores: of(derived.scores), sinks: of(derived.sinks), keysKnown, pins, shades, palette };
    this.root.setAttribute("aria-label", `Canvas at step ${step}: up and down move, Enter pins a token`);
    for (let position = 0; position < this.cells.length; position++) this.update(position, at);
  }

  /** Marks the tokens that hold a text; gives how many there are. */
  search(text: string): number {
    this.wanted = text.trim().toLowerCase();
    for (const cell of this.cells) cell.name = "";
    return this.cells.filter((cell) => this.isWanted(cell)).length;
  }

  /** Walks to the next token that was found. */
  next(): void {
    const found = this.cells.flatMap((cell, position) => (this.isWanted(cell) ? [position] : []));
    if (found.length > 0) this.activate(found.find((position) => position > this.active) ?? found[0]);
  }

  private isWanted(cell: Cell): boolean {
    return this.wanted !== "" && (cell.text.textContent ?? "").toLowerCase().includes(this.wanted);
  }

  private cell(position: number): HTMLElement | null {
    return this.cells[position]?.root ?? null;
  }

  private build(sample: Sample, lexicon: Lexicon): void {
    this.sample = sample;
    this.lexicon = lexicon;
    this.active = -1;
    this.root.removeAttribute("aria-activedescendant");
    const { positions, final_sequence } = sample.spec;
    const children: HTMLElement[] = [];
    this.cells = Array.from({ length: positions }, (_, position) => {
      const final = final_sequence[position] ?? -1;
      const text = el("bdi");
      const kind = lexicon.kind(final);
      const room = kind === "mask" || kind === "nothing" ? "    " : visible(lexicon.text(final));
      const root = el("li", { id: `${this.prefix}${position}`, role: "option", "data-room": room }, text);
      children.push(root);
      if (kind === "word" && breaksLine(lexicon.text(final))) {
        children.push(el("li", { class: "break", role: "presentation", "aria-hidden": "true" }));
      }
      return { root, text, token: NaN, coming: null, shade: NaN, name: "" };
    });
    this.root.replaceChildren(...children);
  }

  private update(position: number, at: TokenStep): void {
    const cell = this.cells[position];
    const sample = this.sample!;
    const token = sample.canvas?.[at.step * sample.spec.positions + position] ?? sample.spec.final_sequence[position];
    // Where nobody asks, no score is known, but the keys are there all the same.
    const exists = !at.keysKnown || !Number.isNaN(at.scores[position]);
    const coming = this.coming(position, at.step);
    if (token !== cell.token || coming !== cell.coming) this.write(cell, token, coming);
    const shade = at.shades.index(at.scores[position]);
    if (shade !== cell.shade) {
      cell.root.style.backgroundColor = shade < 0 ? "" : at.palette.fills[shade];
      cell.root.style.color = shade < 0 ? "" : at.palette.inks[shade];
      cell.shade = shade;
    }
    const name = this.className(position, token, exists, at);
    if (name === cell.name) return;
    cell.root.className = name;
    cell.root.setAttribute("aria-selected", String(at.pins.includes(position)));
    cell.name = name;
  }

  /** The token that is committed after the step, null where none is. */
  private coming(position: number, step: number): number | null {
    const { canvas, committed, spec } = this.sample!;
    if (!committed?.[step * spec.positions + position]) return null;
    const next = step + 1 < spec.steps ? canvas?.[(step + 1) * spec.positions + position] : undefined;
    const token = next ?? spec.final_sequence[position] ?? -1;
    // Of a sample that is still being recorded, the last one is not known.
    return ["word", "special"].includes(this.lexicon!.kind(token)) ? token : null;
  }

  private write(cell: Cell, token: number, coming: number | null): void {
    const kind = this.lexicon!.kind(token);
    const known = (id: number): string => visible(this.lexicon!.text(id));
    cell.token = token;
    cell.coming = coming;
    const isNamed = kind === "word" || kind === "special";
    cell.text.textContent = coming !== null ? known(coming) : isNamed ? known(token) : "";
    if (coming !== null) cell.root.setAttribute("aria-label", `blank, becomes ${known(coming)}`);
    else if (kind === "mask") cell.root.setAttribute("aria-label", "blank");
    else cell.root.removeAttribute("aria-label");
  }

  private className(position: number, token: number, exists: boolean, at: TokenStep): string {
    const sample = this.sample!;
    const { step } = at;
    const names: string[] = [exists ? this.lexicon!.kind(token) : "absent"];
    if (at.sinks[position]) names.push("sink", ...(at.sinks[position] === SOME ? ["some"] : []));
    if (this.isWanted(this.cells[position])) names.push("found");
    if (at.pins.includes(position)) names.push("pinned");
    if (sample.committed?.[step * sample.spec.positions + position]) names.push("commits");
    if (sample.spec.bidirectional && sample.blockStart && sample.blockStop) {
      if (position >= sample.blockStart[step] && position < sample.blockStop[step]) names.push("block");
    }
    if (position === sample.spec.prompt_length && position > 0) names.push("generated");
    if (position === this.active) names.push("active");
    return names.join(" ");
  }

  private positionOf(target: EventTarget | null): number | null {
    const cell = target instanceof Element ? target.closest<HTMLElement>("li[role=option]") : null;
    return cell && this.root.contains(cell) ? Number(cell.id.slice(this.prefix.length)) : null;
  }

  private attend(position: number | null): void {
    this.events.attend(position, position === null ? null : this.cell(position));
  }

  private activate(position: number): void {
    this.cell(this.active)?.classList.remove("active");
    for (const changed of [this.active, position]) if (this.cells[changed]) this.cells[changed].name = "";
    this.active = position;
    const cell = this.cell(position);
    cell?.classList.add("active");
    if (cell) this.root.setAttribute("aria-activedescendant", cell.id);
    else this.root.removeAttribute("aria-activedescendant");
    cell?.scrollIntoView({ block: "nearest" });
    this.attend(cell ? position : null);
  }

  /** Up and down walk through the tokens; left and right stay the step's. */
  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.cells.length - 1;
    if (event.key === "ArrowDown") this.activate(Math.min(last, this.active + 1));
    else if (event.key === "ArrowUp") this.activate(Math.max(0, this.active < 0 ? last : this.active - 1));
    else if (event.key === "Enter" && this.active >= 0) this.events.pin(this.active);
    else return;
    event.preventDefault();
  }
}
