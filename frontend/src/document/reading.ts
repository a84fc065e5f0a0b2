// Finds the document in the page and opens its samples, each once.

import { type Sample, openSample } from "./sample";
import { DATA_ELEMENT, type PageDocument, VERSION } from "./types";

export function readDocument(page: Document): PageDocument {
  const element = page.getElementById(DATA_ELEMENT);
  const parsed = JSON.parse(element?.textContent ?? "null") as PageDocument | null;
  element?.remove();
  if (!parsed || !Array.isArray(parsed.traces) || !parsed.traces.some((trace) => trace.samples.length > 0)) {
    throw new Error("This page carries no trace. Make one with: sinkscope report TRACE --out report.html");
  }
  if (parsed.version !== VERSION) {
    throw new Error(`This page reads documents of version ${VERSION}, this one has version ${parsed.version}.`);
  }
  return parsed;
}

export class Library {
  private readonly opened = new Map<string, Promise<Sample>>();
  private readonly ready = new Map<string, Sample>();

  constructor(readonly document: PageDocument) {}

  /**
   * The sample if it is open; else it is opened, and `then` is called when that is done. After a failure it is opened anew
   * when it is asked for again.
   */
  sample(trace: number, sample: number, then: () => void, failed: (error: Error) => void): Sample | null {
    const key = `${trace}/${sample}`;
    const here = this.ready.get(key);
    if (here) return here;
    if (!this.opened.has(key)) {
      const opening = openSample(this.document.traces[trace].samples[sample]);
      this.opened.set(key, opening);
      opening.then(
        (open) => {
          this.ready.set(key, open);
          then();
        },
        (error: Error) => {
          this.opened.delete(key);
          failed(error);
        },
      );
    }
    return null;
  }
}
