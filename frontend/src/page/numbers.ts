// Numbers as readers see them.

/** Three significant digits, without an exponent where it is not needed. */
export function short(value: number): string {
  if (Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return value.toFixed(0);
  if (size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

export function percent(share: number): string {
  if (Number.isNaN(share)) return "–";
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return smallPercent(share);
}

/** However small it is. */
export function smallPercent(share: number): string {
  return `${Number((100 * share).toPrecision(3))} %`;
}

export function counted(count: number, thing: string): string {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}
