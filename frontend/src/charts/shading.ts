// From a score to a colour of the table. Logarithmic shading begins at half a fair share, as in the printed figures:
// linear shading shows sinks alone.

import type { Shading } from "../state/state";

export interface Shades {
  kind: Shading;
  low: number;
  high: number;
  /** 0 to 255; NaN gives -1. */
  index(score: number): number;
}

/** `fair`: the score of a fair share. The top is the highest score, at least 15 fair shares when logarithmic. */
export function shades(kind: Shading, highest: number, fair: number): Shades {
  if (kind === "linear") {
    const high = highest > 0 ? highest : 1;
    return { kind, low: 0, high, index: (score) => clamped(score / high) };
  }
  const low = fair / 2;
  const high = Math.max(highest, 15 * fair);
  const range = Math.log(high / low);
  return { kind, low, high, index: (score) => clamped(score <= low ? 0 : Math.log(score / low) / range) };
}

/** From less to more, nothing in the middle. */
export function differenceShades(most: number): Shades {
  const high = most > 0 ? most : 1;
  return { kind: "linear", low: -high, high, index: (score) => clamped((score / high + 1) / 2) };
}

function clamped(part: number): number {
  if (Number.isNaN(part)) return -1;
  return part <= 0 ? 0 : part >= 1 ? 255 : Math.floor(part * 255.999);
}
