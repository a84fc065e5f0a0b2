// The three scales of received attention: the score of a key that takes all is n (the number of keys), 100 or 1.

export const SCALES = ["sum", "percent", "mean"] as const;
export type Scale = (typeof SCALES)[number];

export function fullScore(scale: Scale, keys: number): number {
  return scale === "sum" ? keys : scale === "percent" ? 100 : 1;
}

export const SCALE_LABELS: Record<Scale, string> = {
  sum: "sum: 1 is a fair share",
  percent: "percent of all attention",
  mean: "mean: share of all attention",
};
