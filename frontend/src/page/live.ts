// What a screen reader is told: once things have come to rest, not at every step of a play.

import { find, setText } from "./element";

const REST = 350;

export class Live {
  private readonly root = find("#live");
  private timer = 0;

  say(text: string): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => setText(this.root, text), REST);
  }
}
