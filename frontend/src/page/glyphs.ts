// Token texts made visible: line breaks, spaces alone and control characters get a glyph, the rest stays as it is.

const NAMED: Record<string, string> = { "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u00ad": "‧" };

/** Characters that change what follows them, or that nobody sees: direction marks, zero widths, tags, half pairs. */
const HIDDEN =
  /[\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/u;
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

/** One character as shown. */
function glyph(character: string): string {
  const named = NAMED[character];
  if (named) return named;
  const code = character.codePointAt(0)!;
  if (CONTROL.test(character))
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "␡" : hex(code);
  return HIDDEN.test(character) ? hex(code) : character;
}

function hex(code: number): string {
  return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** The text as shown. A joiner between emoji stays, since it makes them one. */
export function visible(text: string): string {
  if (text === "") return "∅";
  if (/^ +$/.test(text)) return "␣".repeat(text.length);
  return [...text].map(glyph).join("");
}

export function breaksLine(text: string): boolean {
  return text.includes("\n");
}

/** For sentences: shortened, so that a long token does not push the numbers away. */
export function quoted(text: string, most = 24): string {
  const letters = [...visible(text)];
  const shown = letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join("");
  return `“${shown}”`;
}
