// The sink rule, its number, the scale and the shading, as live controls.

import { RULES, ruleKind } from "../sinks/registry";
import { SCALES, SCALE_LABELS, type Scale } from "../sinks/scales";
import type { Shading, State, Store } from "../state/state";
import { find, setOptions, setText } from "./element";

export class RuleBar {
  private readonly rule = find<HTMLSelectElement>("#rule");
  private readonly number = find<HTMLInputElement>("#setting");
  private readonly range = find<HTMLInputElement>("#setting-range");
  private readonly scale = find<HTMLSelectElement>("#scale");
  private readonly shading = find<HTMLSelectElement>("#shading");
  private readonly refusal = find<HTMLElement>("#refusal");

  constructor(private readonly store: Store) {
    find<HTMLFormElement>("#bar").addEventListener("submit", (event) => event.preventDefault());
    this.rule.addEventListener("change", () => store.update({ rule: this.rule.value }));
    this.scale.addEventListener("change", () => store.update({ scale: this.scale.value as Scale }));
    this.shading.addEventListener("change", () => store.update({ shading: this.shading.value as Shading }));
    this.range.addEventListener("input", () => this.set(this.range.value));
    this.number.addEventListener("input", () => this.set(this.number.value));
  }

  show(state: State, refusal: string | null): void {
    const kind = ruleKind(state.rule);
    const value = state.settings[state.rule];
    setOptions(
      this.rule,
      RULES.map(({ name }) => [name, name]),
      state.rule,
    );
    setOptions(
      this.scale,
      SCALES.map((name) => [name, SCALE_LABELS[name]]),
      state.scale,
    );
    setOptions(
      this.shading,
      [
        ["log", "logarithmic"],
        ["linear", "linear"],
      ],
      state.shading,
    );
    setText(find("#setting-name"), kind.parameter);
    this.range.setAttribute("aria-label", kind.parameter);
    for (const input of [this.number, this.range]) {
      Object.assign(input, { min: String(kind.least), step: String(kind.step) });
    }
    this.number.step = "any";
    this.range.max = String(kind.most);
    this.range.value = String(value);
    // What is being typed stays as it is typed.
    if (this.number.value === "" ? !Number.isNaN(value) : Number(this.number.value) !== value) {
      this.number.value = Number.isNaN(value) ? "" : String(value);
    }
    const told = Number.isNaN(value) ? `type a number for ${kind.parameter}` : refusal;
    this.refusal.hidden = told === null;
    setText(this.refusal, told ?? "");
  }

  private set(text: string): void {
    const value = text.trim() === "" ? NaN : Number(text);
    const { state } = this.store;
    this.store.update({ settings: { ...state.settings, [state.rule]: value } });
  }
}
