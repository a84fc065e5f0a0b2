// Works through all steps in small slices between frames, the step in view first.

import { loadRows, peekRows } from "./step_rows";
import type { Sample } from "../document/sample";
import type { StepRows } from "./step_rows";

/** Milliseconds of work before the page may draw again. */
const SLICE = 9;
/** Milliseconds between two redraws on the way: each costs a frame that the work could use. */
const TOLD = 120;

export interface SweepTask {
  sample: Sample;
  group: string;
  /** Where to begin; the sweep goes on from there and comes back to the start. */
  from: number;
  needs(step: number): boolean;
  visit(step: number, rows: StepRows): void;
  /** Called now and then, so that what is there can be drawn. */
  progress(): void;
  finished(): void;
  failed(error: Error): void;
}

export class Sweep {
  private stopped = false;

  constructor(private readonly task: SweepTask) {
    this.run().catch((error: Error) => {
      if (!this.stopped) task.failed(error);
    });
  }

  stop(): void {
    this.stopped = true;
  }

  private async run(): Promise<void> {
    const { task } = this;
    const { steps } = task.sample.spec;
    let began = performance.now();
    let told = began;
    for (let i = 0; i < steps; i++) {
      const step = (task.from + i) % steps;
      if (!task.needs(step)) continue;
      const rows = peekRows(task.sample, task.group, step) ?? (await loadRows(task.sample, task.group, step));
      if (this.stopped) return;
      if (rows) task.visit(step, rows);
      if (performance.now() - began < SLICE) continue;
      if (performance.now() - told >= TOLD) {
        task.progress();
        told = performance.now();
      }
      await breath();
      if (this.stopped) return;
      began = performance.now();
    }
    task.finished();
  }
}

/** Lets the browser draw and take input. A message comes sooner than a timer, which browsers slow down. */
export function breath(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
