// Finds tokens in the canvas by their text; Enter walks from one to the next.

import { el, setText } from "./element";
import type { TokenView } from "./token_view";

export class Search {
  readonly root: HTMLElement;

  constructor(tokens: TokenView, redraw: () => void) {
    const input = el("input", {
      type: "search",
      placeholder: "Find a token",
      "aria-label": "Find a token",
      autocomplete: "off",
    });
    const told = el("span", { class: "found-count", role: "status" });
    this.root = el("span", { class: "search" }, input, told);
    input.addEventListener("input", () => {
      const found = tokens.search(input.value);
      setText(told, input.value.trim() === "" ? "" : `${found} found`);
      redraw();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      tokens.next();
      redraw();
    });
  }
}
