// The state in the address, after the "#": a link shows the same view. What is at its default is left out.

import { METRICS, type Metric } from "../measure/layer_heads";
import { QUANTITIES, type Quantity } from "../measure/quantities";
import { ALL, offeredIn } from "../sinks/groups";
import { RULES, ruleKind } from "../sinks/registry";
import { SCALES, type Scale } from "../sinks/scales";
import type { PageDocument } from "../document/types";
import { type PaneState, type Shading, type State, type Theme, freshPane, freshState, MOST_PINS } from "./state";

const MEAN = "mean";

export function toHash(state: State): string {
  const plain = freshState();
  const words: [string, string][] = [["step", String(state.step)]];
  state.panes.forEach((pane, index) => words.push(...paneWords(pane, index === 0 ? "" : "2")));
  const { parameter, initial } = ruleKind(state.rule);
  if (state.rule !== plain.rule) words.push(["rule", state.rule]);
  if (state.settings[state.rule] !== initial) words.push([parameter, String(state.settings[state.rule])]);
  for (const name of ["scale", "shading", "metric", "quantity", "theme"] as const) {
    if (state[name] !== plain[name]) words.push([name, state[name]]);
  }
  return words.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll("%2C", ",")}`).join("&");
}

function paneWords(pane: PaneState, suffix: string): [string, string][] {
  const words: [string, string][] = [];
  // The second pane is there because its trace is named.
  if (suffix !== "" || pane.trace !== 0) words.push([`trace${suffix}`, String(pane.trace)]);
  if (pane.sample !== 0) words.push([`sample${suffix}`, String(pane.sample)]);
  if (pane.settled) words.push([`layer${suffix}`, String(pane.layer ?? MEAN)]);
  if (pane.head !== null) words.push([`head${suffix}`, String(pane.head)]);
  if (pane.queries !== ALL) words.push([`queries${suffix}`, pane.queries]);
  if (pane.pins.length > 0) words.push([`pin${suffix}`, pane.pins.join(",")]);
  return words;
}

/** What an address says; whatever is not there, or is not in the document, is left at its default. */
export function fromHash(hash: string, document: PageDocument): State {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const plain = freshState();
  const rule = oneOf(
    words.get("rule"),
    RULES.map((kind) => kind.name),
    plain.rule,
  );
  const { parameter, initial } = ruleKind(rule);
  const panes = [readPane(words, "", document)];
  if (words.has("trace2")) panes.push(readPane(words, "2", document));
  return {
    step: whole(words.get("step")) ?? 0,
    panes,
    rule,
    settings: { ...plain.settings, [rule]: decimal(words.get(parameter)) ?? initial },
    scale: oneOf<Scale>(words.get("scale"), SCALES, plain.scale),
    shading: oneOf<Shading>(words.get("shading"), ["log", "linear"], plain.shading),
    metric: oneOf<Metric>(words.get("metric"), METRICS, plain.metric),
    quantity: oneOf<Quantity>(words.get("quantity"), QUANTITIES, plain.quantity),
    theme: oneOf<Theme>(words.get("theme"), ["auto", "light", "dark"], plain.theme),
  };
}

function readPane(words: URLSearchParams, suffix: string, document: PageDocument): PaneState {
  const number = (name: string): number | null => whole(words.get(name + suffix));
  const trace = within(number("trace"), document.traces.length);
  const sample = within(number("sample"), document.traces[trace].samples.length);
  const spec = document.traces[trace].samples[sample];
  if (!spec) return freshPane(trace, sample);
  const pins = (words.get(`pin${suffix}`) ?? "").split(",").map(whole);
  const known = (label: number | null, labels: number[]): number | null =>
    label !== null && labels.includes(label) ? label : null;
  const layer = known(number("layer"), spec.layer_numbers);
  const head = known(number("head"), spec.head_numbers);
  return {
    trace,
    sample,
    layer,
    head,
    settled: layer !== null || head !== null || words.get(`layer${suffix}`) === MEAN,
    queries: oneOf(words.get(`queries${suffix}`), offeredIn(spec), ALL),
    pins: [...new Set(pins)].filter((pin): pin is number => pin !== null && pin < spec.positions).slice(-MOST_PINS),
    pinning: false,
  };
}

function whole(text: string | null): number | null {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

function decimal(text: string | null): number | null {
  const value = text === null || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}

function within(index: number | null, count: number): number {
  return index !== null && index < count ? index : 0;
}

function oneOf<T extends string>(word: string | null, known: readonly T[], otherwise: T): T {
  return known.find((name) => name === word) ?? otherwise;
}
