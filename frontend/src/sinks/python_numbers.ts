// Numbers as Python prints them, so that refusals read the same on the page and on the command line.

/** `f"{value:.{digits}g}"` */
export function general(value: number, digits = 6): string {
  if (!Number.isFinite(value)) return notFinite(value);
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent >= -4 && exponent < digits) return String(Number(value.toPrecision(digits)));
  const trimmed = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
  return `${trimmed}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

/** `str(value)` of a float. */
export function floatText(value: number): string {
  if (!Number.isFinite(value)) return notFinite(value);
  return Number.isInteger(value) ? value.toFixed(1) : String(value);
}

function notFinite(value: number): string {
  if (Number.isNaN(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}
