// What a token of a sample is called and what kind it is.

import type { SampleSpec } from "../document/types";

export type Kind = "mask" | "special" | "word" | "nothing";

export class Lexicon {
  private readonly special: Set<number>;

  constructor(private readonly spec: SampleSpec) {
    this.special = new Set(spec.special_ids);
  }

  /** The token's text, or its number where no text is known. */
  text(token: number): string {
    return this.spec.tokens?.[String(token)] ?? `#${token}`;
  }

  kind(token: number): Kind {
    if (token < 0) return "nothing";
    if (token === this.spec.mask_token_id) return "mask";
    return this.special.has(token) ? "special" : "word";
  }
}
