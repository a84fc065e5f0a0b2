// One tip for the whole page: a few lines beside whatever is pointed at.

import { el, find } from "./element";

export class Tip {
  private readonly root = find<HTMLElement>("#tip");

  /** Shows lines (the first stands out) beside a point of the window. */
  show(lines: readonly string[], x: number, y: number): void {
    this.root.replaceChildren(...lines.map((line, index) => el(index === 0 ? "strong" : "span", {}, line)));
    this.root.hidden = false;
    const { width, height } = this.root.getBoundingClientRect();
    const right = window.innerWidth - width - 8;
    const below = y + 18;
    const top = below + height > window.innerHeight - 8 ? y - height - 12 : below;
    this.root.style.left = `${Math.max(8, Math.min(right, x + 12))}px`;
    this.root.style.top = `${Math.max(8, top)}px`;
  }

  hide(): void {
    this.root.hidden = true;
  }
}
