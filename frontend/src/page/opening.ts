// Opens the sample that a pane shows, and keeps what belongs to it.

import type { SampleSpec } from "../document/types";
import { Deriver } from "../measure/derived";
import { Model } from "../measure/model";
import { type Subject, subjectOf } from "../measure/subject";
import type { SinkRule } from "../sinks/rule";
import type { PaneState } from "../state/state";
import type { Context } from "./context";
import { Lexicon } from "./lexicon";

export interface Opened {
  key: string;
  model: Model;
  lexicon: Lexicon;
  deriver: Deriver;
}

export class Opening {
  private opened: Opened | null = null;
  /** What is being looked through for a place to open at. */
  private settling: Opened | null = null;

  constructor(private readonly context: Context) {}

  spec({ trace, sample }: PaneState): SampleSpec {
    return this.context.library.document.traces[trace].samples[sample];
  }

  /**
   * Null while the sample is being read; a redraw is asked for once it is there. A pane that is not settled yet is told
   * where to open.
   */
  of(pane: PaneState, rule: SinkRule, settle: (subject: Subject | null) => void): Opened | null {
    const key = `${pane.trace}/${pane.sample}`;
    if (this.opened?.key === key) return this.settled(pane, rule, settle);
    const { library, redraw, failure } = this.context;
    const read = (): void => {
      failure.clear();
      redraw();
    };
    const failed = (error: Error): void => failure.tell(error);
    const sample = library.sample(pane.trace, pane.sample, read, failed);
    if (!sample) return null;
    this.opened?.model.stop();
    const model = new Model(sample, read, failed);
    this.opened = { key, model, lexicon: new Lexicon(sample.spec), deriver: new Deriver(model) };
    return this.settled(pane, rule, settle);
  }

  private settled(pane: PaneState, rule: SinkRule, settle: (subject: Subject | null) => void): Opened | null {
    const { opened } = this;
    if (!opened || pane.settled || opened.model.sample.spec.steps === 0) return opened;
    if (this.settling === opened) return null;
    this.settling = opened;
    const done = (subject: Subject | null): void => {
      this.settling = null;
      if (this.opened === opened) settle(subject);
    };
    subjectOf(opened.model.sample, opened.model, rule).then(done, (error: Error) => {
      this.context.failure.tell(error);
      done(null);
    });
    return null;
  }
}
