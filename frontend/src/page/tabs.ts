// On a narrow screen two samples do not stand side by side: tabs show one or the other.

import { el, find, setText } from "./element";

export class Tabs {
  private readonly buttons = ["First sample", "Second sample"].map((label, index) => {
    const button = el("button", { type: "button", "aria-pressed": "false" }, label);
    button.addEventListener("click", () => this.choose(index));
    return button;
  });
  readonly root = el("div", { class: "tabs", role: "group", "aria-label": "Which sample is shown" }, ...this.buttons);

  /** What the two are called. */
  name(names: readonly string[]): void {
    names.forEach((name, index) => setText(this.buttons[index], name));
  }

  choose(index: number): void {
    find<HTMLElement>("#panes").dataset["tab"] = String(index);
    this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === index)));
  }
}
