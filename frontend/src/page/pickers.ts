// The pickers of a pane: which sample, layer, head and group of queries.

import type { PageDocument, SampleSpec } from "../document/types";
import type { Selection } from "../measure/selection";
import { ALL, offeredIn } from "../sinks/groups";
import type { PaneState } from "../state/state";
import { el, setOptions } from "./element";

const MEAN = "mean";

export class Pickers {
  readonly root: HTMLElement;
  private readonly sample = select("Sample");
  private readonly layer = select("Layer");
  private readonly head = select("Head");
  private readonly queries = select("Queries");

  constructor(
    private readonly document: PageDocument,
    label: string,
    private readonly changed: (patch: Partial<PaneState>) => void,
  ) {
    const labels = [this.sample, this.layer, this.head, this.queries].map((each) =>
      el("label", { class: each.name }, `${each.title} `, each),
    );
    for (const each of [this.sample, this.layer, this.head, this.queries]) each.removeAttribute("title");
    this.root = el("div", { class: "pickers", role: "group", "aria-label": `${label}: what is shown` }, ...labels);
    this.listen();
  }

  show(pane: PaneState, spec: SampleSpec): void {
    setOptions(this.sample, this.samples(), `${pane.trace}/${pane.sample}`);
    setOptions(this.layer, numbered(spec.layer_numbers), String(pane.layer ?? MEAN));
    setOptions(this.head, numbered(spec.head_numbers), String(pane.queries === ALL ? (pane.head ?? MEAN) : MEAN));
    setOptions(
      this.queries,
      offeredIn(spec).map((name) => [name, name]),
      pane.queries,
    );
    this.head.disabled = pane.queries !== ALL;
    this.queries.disabled = offeredIn(spec).length === 1;
  }

  private samples(): [string, string][] {
    return this.document.traces.flatMap((trace, at) =>
      trace.samples.map((sample, index): [string, string] => {
        const unfinished = sample.complete ? "" : " (unfinished)";
        const which = trace.samples.length > 1 ? ` · sample ${sample.id}` : "";
        return [`${at}/${index}`, `${trace.name}${which}${unfinished}`];
      }),
    );
  }

  private listen(): void {
    this.sample.addEventListener("change", () => {
      const [trace, sample] = this.sample.value.split("/").map(Number);
      this.changed({ trace, sample, layer: null, head: null, queries: ALL, settled: false, pins: [], pinning: false });
    });
    this.layer.addEventListener("change", () => this.changed({ layer: labelled(this.layer.value) }));
    this.head.addEventListener("change", () => this.changed({ head: labelled(this.head.value) }));
    this.queries.addEventListener("change", () => this.changed({ queries: this.queries.value }));
  }
}

/** What a pane's numbers and names come to in its sample; what the sample lacks is left at the mean, or all. */
export function pickedSelection({ layer, head, queries }: PaneState, spec: SampleSpec): Selection {
  const index = (label: number | null, labels: number[]): number | null =>
    label === null || !labels.includes(label) ? null : labels.indexOf(label);
  const group = offeredIn(spec).includes(queries) ? queries : ALL;
  const heads = group === ALL ? index(head, spec.head_numbers) : null;
  return { group, layer: index(layer, spec.layer_numbers), head: heads };
}

function select(title: string): HTMLSelectElement {
  return el("select", { name: title.toLowerCase(), title, autocomplete: "off" });
}

function numbered(numbers: readonly number[]): [string, string][] {
  return [[MEAN, "mean"], ...numbers.map((number): [string, string] => [String(number), String(number)])];
}

function labelled(value: string): number | null {
  return value === MEAN ? null : Number(value);
}
