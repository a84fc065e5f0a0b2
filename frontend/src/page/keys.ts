// Keys that work everywhere on the page, unless something that uses them itself has the focus.

import type { Transport } from "./transport";

const LARGE = 10;

/** Elements that have their own use for arrows, Home and End. */
const TYPING = "input, select, textarea, dialog, [contenteditable]";
/** Elements that the space key presses or opens. */
const PRESSING = `button, a, summary, ${TYPING}`;

export function listenToKeys(transport: Transport): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target instanceof Element ? event.target : document.body;
    const by = event.shiftKey ? LARGE : 1;
    const uses = (selector: string): boolean => target.closest(selector) !== null;
    const isSlider = target.id === "step";
    if (event.key === " " && (isSlider || !uses(PRESSING))) transport.toggle();
    else if (uses(TYPING)) return;
    else if (event.key === "ArrowRight") transport.move(by);
    else if (event.key === "ArrowLeft") transport.move(-by);
    else if (event.key === "Home") transport.move(-Infinity);
    else if (event.key === "End") transport.move(Infinity);
    else return;
    event.preventDefault();
  });
}

export const KEYS: readonly [string, string][] = [
  ["← →", "one step back or on; with Shift, ten"],
  ["Home End", "first and last step"],
  ["Space", "play and pause"],
  ["Tab", "to the next control, chart or list"],
  ["↑ ↓", "in the canvas and in the step map: the token or position before or after"],
  ["Enter", "there: pin it; in the canvas once more: take the pin out"],
  ["↑ ↓ ← →", "in the maps of layers and heads, and of queries and keys: move the cell; Enter picks it"],
  ["Esc", "close a drawer"],
];
