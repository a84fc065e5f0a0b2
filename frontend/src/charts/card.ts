// The frame that every chart shares: a heading, a line that says what is shown, a plot, and buttons that save it.

import { el } from "../page/element";
import { type Format, FORMATS } from "./saving";

export interface Card {
  root: HTMLElement;
  /** Beside the heading: what is chosen here. */
  head: HTMLElement;
  note: HTMLElement;
  plot: HTMLElement;
  foot: HTMLElement;
}

export function card(title: string, name: string, save: ((format: Format) => void) | null): Card {
  const note = el("p", { class: "note" });
  const plot = el("div", { class: "plot" });
  const foot = el("div", { class: "foot" });
  const buttons = FORMATS.map((format) => {
    const label = `Save ${title.toLowerCase()} as ${format.toUpperCase()}`;
    const button = el("button", { type: "button", class: "quiet", "aria-label": label }, format.toUpperCase());
    button.addEventListener("click", () => save?.(format));
    return button;
  });
  const chosen = el("span", { class: "chosen-here" });
  const head = el("header", {}, el("h3", {}, title), chosen, save && el("span", { class: "save" }, ...buttons), note);
  const root = el("section", { class: `card ${name}`, "aria-label": title }, head, plot, foot);
  return { root, head: chosen, note, plot, foot };
}

/** Calls back with the width of an element when it is known and whenever it changes. */
export function onWidth(element: Element, changed: (width: number) => void): void {
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (width === last || width === 0) return;
    last = width;
    changed(width);
  }).observe(element);
}
