// Ties state, panes and controls together: any change of the state leads to one redraw at the next frame.

import { shades } from "../charts/shading";
import { type ThemeColours, themeColours } from "../charts/theme_colours";
import type { Library } from "../document/reading";
import { ruleKind } from "../sinks/registry";
import { fromHash, toHash } from "../state/address";
import { type PaneState, Store, freshPane } from "../state/state";
import { bridge } from "./bridge";
import type { Common } from "./common";
import type { Context } from "./context";
import { Difference } from "./difference";
import { closeOnBackdrop, openKeys, openProvenance, openSinks } from "./drawers";
import { el, find, setText } from "./element";
import type { Failure } from "./failure";
import { listenToKeys } from "./keys";
import { Legend } from "./legend";
import { Live } from "./live";
import { Pane } from "./pane";
import { RuleBar } from "./rule_bar";
import { applyTheme, isDark, nextTheme, onSystemTheme } from "./theme";
import { Tabs } from "./tabs";
import { Tip } from "./tip";
import { Transport } from "./transport";

/** Of a causal model a step is one row, of a bidirectional one a mean of rows: what follows from it, in words. */
const UNLIKE =
  "One of these models is autoregressive: after step 0, each of its steps is the row of one query. A step of the other model is " +
  "the mean over many queries. So moves of the strongest key and numbers of sinks can't be compared, and no difference is drawn.";

/** How long the address may lag behind the state: browsers allow few changes a second. */
const ADDRESS_PAUSE = 250;

export class App {
  private readonly store: Store;
  private readonly context: Context;
  private readonly transport: Transport;
  private readonly ruleBar: RuleBar;
  private readonly legend = new Legend();
  private readonly tabs = new Tabs();
  private readonly difference: Difference;
  private readonly unlike = el("p", { class: "unlike", role: "note" }, UNLIKE);
  private panes: Pane[] = [];
  private colours: ThemeColours | null = null;
  private waiting = false;
  private printing = false;
  private addressTimer = 0;

  constructor(
    private readonly library: Library,
    failure: Failure,
  ) {
    this.store = new Store(fromHash(location.hash, library.document));
    const redraw = (): void => this.schedule();
    this.context = { library, store: this.store, tip: new Tip(), live: new Live(), redraw, failure };
    this.difference = new Difference(this.context);
    this.transport = new Transport(this.store);
    this.ruleBar = new RuleBar(this.store);
    this.store.subscribe(redraw);
    listenToKeys(this.transport);
    closeOnBackdrop();
    bridge(this.store, library.document);
    this.listen();
    setText(find("#title"), library.document.title);
    document.title = library.document.title;
    this.schedule();
  }

  private schedule(): void {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  private draw(): void {
    const { state } = this.store;
    this.setPanes(state.panes);
    // On paper it is always light.
    const theme = this.printing ? "light" : state.theme;
    applyTheme(theme);
    if (this.colours?.palette.dark !== isDark(theme)) this.colours = themeColours(isDark(theme));
    const rule = ruleKind(state.rule).make(state.settings[state.rule], state.scale);
    for (const pane of this.panes) pane.prepare(state, rule);
    const steps = Math.max(...this.panes.map((pane) => pane.spec.steps));
    const step = Math.min(state.step, Math.max(0, steps - 1));
    if (step !== state.step) this.store.update({ step });
    this.transport.show(step, steps);
    this.ruleBar.show(state, this.panes.map((pane) => pane.refusal).find((text) => text !== null) ?? null);
    const common = this.common();
    if (common) {
      for (const pane of this.panes) pane.draw(state, common, this.colours!);
      this.legend.show(
        state.scale,
        rule,
        this.panes.flatMap((pane) => pane.subject ?? []),
      );
    }
    this.drawDifference();
    if (!this.transport.isPlaying) this.context.live.say(this.sentence(step));
    this.writeAddress();
  }

  /** What the panes share; null where none has anything to show. */
  private common(): Common | null {
    const { state } = this.store;
    const subjects = this.panes.flatMap((pane) => pane.subject ?? []);
    if (subjects.length === 0) return null;
    const most = (numbers: number[]): number => Math.max(0, ...numbers);
    const plans = this.panes.map((pane) => pane.plan(state, this.colours!));
    const names = new Set(plans.flatMap(({ tops }) => Object.keys(tops)));
    const derived = subjects.map((subject) => subject.derived);
    return {
      frame: {
        steps: most(subjects.map(({ sample }) => sample.spec.steps)),
        positions: most(subjects.map(({ sample }) => sample.spec.positions)),
      },
      shades: shades(
        state.shading,
        most(derived.map((each) => each.highest)),
        Math.min(...derived.map((each) => each.fair)),
      ),
      tops: Object.fromEntries([...names].map((name) => [name, most(plans.map(({ tops }) => tops[name] ?? 0))])),
      peak: most(plans.map(({ peak }) => peak)),
      maps: subjects.some(({ sample }) => sample.maps !== null),
    };
  }

  private drawDifference(): void {
    const [first, second] = this.panes.map((pane) => pane.subject);
    const { state } = this.store;
    const causal = state.panes.map(
      ({ trace, sample }) => !this.library.document.traces[trace].samples[sample].bidirectional,
    );
    const unlike = causal.length > 1 && causal[0] !== causal[1];
    this.unlike.hidden = !unlike;
    this.difference.root.hidden = !first || !second || unlike;
    if (!first || !second) return;
    const names = state.panes.map(({ trace, sample }) => {
      const { name, samples } = this.library.document.traces[trace];
      return `${name}, sample ${samples[sample].id}`;
    });
    this.tabs.name(names);
    if (!unlike) this.difference.show(first, second, names, state.step, this.colours!);
  }

  private sentence(step: number): string {
    const each = this.panes.map((pane) => pane.sentence()).filter(Boolean);
    return [`step ${step}`, ...each].join("; ");
  }

  private setPanes(states: readonly PaneState[]): void {
    if (this.panes.length === states.length) return;
    const kept = this.panes.slice(0, states.length);
    while (kept.length < states.length) kept.push(new Pane(kept.length, this.context));
    this.panes = kept;
    const main = find<HTMLElement>("#panes");
    const two = kept.length > 1;
    main.replaceChildren(
      ...(two ? [this.tabs.root, this.unlike] : []),
      ...kept.map((pane) => pane.root),
      ...(two ? [this.difference.root] : []),
    );
    main.classList.toggle("two", two);
    if (main.dataset["tab"] === undefined || !two) this.tabs.choose(0);
    else this.tabs.choose(1);
    find("#compare").setAttribute("aria-pressed", String(kept.length > 1));
  }

  private compare(): void {
    const { panes } = this.store.state;
    this.store.update({ panes: panes.length > 1 ? panes.slice(0, 1) : [panes[0], this.other(panes[0])] });
  }

  /**
   * What to set beside a sample: the same sample of another trace, or the next one of its own. At the same layer and head,
   * where it has them; where a token is pinned, with its own strongest sink pinned.
   */
  private other({ trace, sample, layer, head, settled, pins }: PaneState): PaneState {
    const { traces } = this.library.document;
    const next = (trace + 1) % traces.length;
    const [at, index] =
      next !== trace
        ? [next, Math.min(sample, traces[next].samples.length - 1)]
        : [trace, (sample + 1) % traces[trace].samples.length];
    const spec = traces[at].samples[index];
    const has = (number: number | null, numbers: number[]): boolean => number === null || numbers.includes(number);
    const same = settled && has(layer, spec.layer_numbers) && has(head, spec.head_numbers);
    return { ...freshPane(at, index), ...(same ? { layer, head, settled, pinning: pins.length > 0 } : {}) };
  }

  private listen(): void {
    find("#compare").addEventListener("click", () => this.compare());
    find("#theme").addEventListener("click", () => this.store.update({ theme: nextTheme(this.store.state.theme) }));
    find("#help").addEventListener("click", openKeys);
    find("#what").addEventListener("click", () => {
      const { rule, settings, scale } = this.store.state;
      openSinks(ruleKind(rule).make(settings[rule], scale));
    });
    find("#about").addEventListener("click", () => {
      const { traces } = this.library.document;
      const { panes } = this.store.state;
      openProvenance(
        panes.map(({ trace, sample }) => ({ trace: traces[trace], sample: traces[trace].samples[sample] })),
      );
    });
    onSystemTheme(() => this.schedule());
    for (const [event, printing] of [["beforeprint", true] as const, ["afterprint", false] as const]) {
      window.addEventListener(event, () => {
        this.printing = printing;
        this.draw();
      });
    }
    window.addEventListener("hashchange", () => {
      if (location.hash.slice(1) !== toHash(this.store.state)) {
        this.store.update(fromHash(location.hash, this.library.document));
      }
    });
  }

  private writeAddress(): void {
    clearTimeout(this.addressTimer);
    this.addressTimer = window.setTimeout(() => {
      const hash = toHash(this.store.state);
      if (location.hash.slice(1) === hash) return;
      try {
        history.replaceState(null, "", `#${hash}`);
      } catch (error) {
        // Inside a notebook the page has no address of its own, and goes without one.
        if (!(error instanceof DOMException)) throw error;
      }
    }, ADDRESS_PAUSE);
  }
}
