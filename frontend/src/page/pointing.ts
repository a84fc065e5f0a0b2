// What is pointed at, or walked to by keys: its numbers are in the tip, and told to screen readers.

import type { Sample } from "../document/sample";
import type { Derived } from "../measure/derived";
import type { Model } from "../measure/model";
import { details } from "./details";
import type { Lexicon } from "./lexicon";
import type { Live } from "./live";
import type { Tip } from "./tip";

export interface Subject {
  sample: Sample;
  model: Model;
  lexicon: Lexicon;
  derived: Derived;
  step: number;
}

export class Pointing {
  private subject: Subject | null = null;
  /** A cell of the canvas, and where: its numbers follow the step. */
  private attended: { position: number; x: number; y: number } | null = null;

  constructor(
    private readonly tip: Tip,
    private readonly live: Live,
  ) {}

  follow(subject: Subject): void {
    this.subject = subject;
    if (this.attended) this.tellAttended();
  }

  token(position: number | null, cell: HTMLElement | null): void {
    const box = cell?.getBoundingClientRect();
    this.attended = position === null || !box ? null : { position, x: box.left, y: box.bottom - 12 };
    this.tellAttended();
  }

  /** A cell of the map over steps, which may be of another step than the one in view. */
  cell(step: number | null, position: number, x: number, y: number): void {
    this.attended = null;
    const { subject } = this;
    if (step === null || !subject) this.lines(null, 0, 0);
    else this.lines([`step ${step}`, ...this.about(subject, step, position)], x, y);
  }

  lines(lines: string[] | null, x: number, y: number): void {
    if (!lines) {
      this.tip.hide();
      return;
    }
    this.tip.show(lines, x, y);
    this.live.say(lines.join(", "));
  }

  private tellAttended(): void {
    const { attended, subject } = this;
    if (!attended || !subject) this.tip.hide();
    else this.lines(this.about(subject, subject.step, attended.position), attended.x, attended.y);
  }

  private about(subject: Subject, step: number, position: number): string[] {
    return details(subject, step, position);
  }
}
