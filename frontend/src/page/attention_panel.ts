// The full map, query by key, of the layer and head that are picked, at the steps for which one was recorded.

import { type Card, card, onWidth } from "../charts/card";
import { GridMap } from "../charts/grid_map";
import { shades } from "../charts/shading";
import { type FullMap, fullMap } from "../measure/full_maps";
import { highest } from "../measure/profile";
import { selectionKey } from "../measure/selection";
import { BarHost } from "./bar_host";
import type { ChartEvents } from "./chart_events";
import { tokenAt, tokenName } from "./details";
import { el, setOptions, setText } from "./element";
import type { LayerView } from "./layer_metric";
import { percent } from "./numbers";
import type { Subject } from "./pointing";

const KIND = { rows: "query", columns: "key", upward: false, widestCell: 24, tallestCell: 24 };
const LABEL = "share of the query's attention";

/** The rows that a pass computed: all of them, or where it had a cache (or one query, as in causal models) a few. */
export function askers({ values, queries }: FullMap): number[] {
  const positions = values.length / queries;
  const all = Array.from({ length: queries }, (_, query) => query);
  return all.filter((query) => values.subarray(query * positions, (query + 1) * positions).some((paid) => paid >= 0));
}

/** Which map it is, and what is hatched in it. */
export function mapWords(found: FullMap): { title: string; hatched: string } {
  const rows = askers(found);
  const { step, queries, of, values } = found;
  const mean = of > 1 ? `, mean of ${of} maps` : "";
  if (rows.length < queries) {
    const asked = rows.length === 1 ? `one query (position ${rows[0]})` : `${rows.length} queries`;
    const hatched = "Hatched: queries that are not computed at this step, and keys that are not there yet. ";
    return { title: `Step ${step}, ${asked}${mean}`, hatched };
  }
  const hatched = values.some(Number.isNaN) ? "Hatched: keys that a query can't see. " : "";
  return { title: `Full map of step ${step}${mean}`, hatched };
}

export class AttentionPanel {
  readonly card: Card;
  private readonly map: GridMap;
  private readonly bar = new BarHost();
  private readonly steps = el("select", { "aria-label": "Steps with a full map", autocomplete: "off" });
  private subject: Subject | null = null;
  private shown: FullMap | null = null;
  private drawn: unknown[] = [];

  constructor(events: ChartEvents) {
    this.card = card("Who looks where", "attention", (format) => {
      events.save("Who looks where", "attention", this.map.drawing(), this.bar.copy(), format, this.shown?.step);
    });
    this.card.head.append(this.steps);
    this.map = new GridMap(this.card.plot, "query-keys", KIND, {
      pick: (_query, key) => {
        if (this.shown) events.step(this.shown.step);
        events.pin(key);
      },
      attend: (query, key, x, y) => events.lines(query === null ? null : this.lines(query, key), x, y),
    });
    this.card.foot.append(this.bar.root);
    this.steps.addEventListener("change", () => events.step(Number(this.steps.value)));
    onWidth(this.card.plot, (width) => this.map.resize(width));
  }

  show(subject: Subject, view: LayerView, redraw: () => void, failed: (error: Error) => void): void {
    const { sample, derived, step } = subject;
    this.subject = subject;
    const found = fullMap(sample, derived.selection, step, redraw, failed);
    const isMap = found !== null && typeof found !== "string";
    this.card.root.classList.toggle("empty", !isMap);
    this.steps.hidden = !isMap;
    const steps = (sample.spec.maps?.steps ?? []).map((each): [string, string] => [String(each), `step ${each}`]);
    setOptions(this.steps, steps, isMap ? String(found.step) : "");
    if (!isMap) {
      this.shown = null;
      this.map.root.setAttribute("aria-label", `Queries by keys: ${found ?? "reading …"}`);
      setText(this.card.note, found ?? "reading …");
      return;
    }
    const pin = view.pin;
    const key = [sample, selectionKey(derived.selection), found.step, view.colours, view.shading, pin];
    if (this.shown && key.every((part, index) => part === this.drawn[index])) return;
    this.drawn = key;
    this.shown = found;
    const numbers = (count: number): number[] => Array.from({ length: count }, (_, index) => index);
    const { positions } = sample.spec;
    // As received attention is shaded: from half a fair share to the most there is.
    const scale = shades(view.shading, highest(found.values, 0), 1 / positions);
    this.map.show({
      rows: numbers(found.queries),
      columns: numbers(positions),
      values: found.values,
      shades: scale,
      palette: view.colours.palette,
      colours: view.colours,
      row: null,
      column: pin,
    });
    this.bar.show(scale, view.colours.palette, LABEL, view.colours);
    const { title, hatched } = mapWords(found);
    setText(this.card.note, `${title}. ${hatched}Click a cell to pin its key.`);
    this.map.root.setAttribute("aria-label", `Queries by keys: ${title}. Arrows move, Enter pins the key.`);
  }

  private lines(query: number, key: number): string[] {
    const { subject, shown } = this;
    if (!subject || !shown) return [];
    const named = (position: number): string =>
      `${position} ${tokenName(subject.lexicon, tokenAt(subject.sample, shown.step, position))}`;
    const paid = shown.values[query * subject.sample.spec.positions + key];
    return [`query ${named(query)} → key ${named(key)}`, `${percent(paid)} of its attention at step ${shown.step}`];
  }
}
