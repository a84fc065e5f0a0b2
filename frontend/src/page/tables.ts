// The two tables of a pane: positions that are sinks, and the tokens under all sinks.

import type { Sample } from "../document/sample";
import type { Derived } from "../measure/derived";
import { type PositionRow, positionTable, tokenTable } from "../measure/tables";
import { tokenName } from "./details";
import { el, setText } from "./element";
import type { Lexicon } from "./lexicon";
import { percent, short } from "./numbers";

const SHORT = 8;

interface Column {
  name: string;
  about: string;
}

class Table {
  readonly root: HTMLElement;
  private readonly note = el("p", { class: "note" });
  private readonly body = el("tbody");
  private readonly more = el("button", { type: "button", class: "quiet" });
  private rows: HTMLElement[] = [];
  private long = false;

  constructor(
    readonly caption: string,
    columns: readonly Column[],
    private readonly empty: string,
  ) {
    const heads = columns.map(({ name, about }) => el("th", { scope: "col", title: about }, name));
    const table = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads)), this.body);
    this.root = el("div", { class: "table" }, table, this.note, this.more);
    this.more.addEventListener("click", () => {
      this.long = !this.long;
      this.draw();
    });
  }

  /** `note`: what its numbers are of, in small print. */
  show(rows: HTMLElement[], note: string): void {
    setText(this.note, rows.length > 0 ? note : "");
    this.rows = rows;
    this.draw();
  }

  private draw(): void {
    const shown = this.long ? this.rows : this.rows.slice(0, SHORT);
    const none = el("tr", {}, el("td", { colspan: 9, class: "none" }, this.empty));
    this.body.replaceChildren(...(shown.length > 0 ? shown : [none]));
    this.more.hidden = this.rows.length <= SHORT;
    this.more.textContent = this.long ? "Show fewer" : `Show all ${this.rows.length}`;
  }
}

export class Tables {
  readonly roots: HTMLElement[];
  private readonly positions = new Table("Sinks by position", POSITION_COLUMNS, "No sinks by this rule.");
  private readonly tokens = new Table("Tokens under the sinks", TOKEN_COLUMNS, "No sinks by this rule.");

  constructor(private readonly pin: (position: number) => void) {
    this.roots = [this.positions, this.tokens].map((table) =>
      el("section", { class: "card tables", "aria-label": table.caption }, table.root),
    );
  }

  show(sample: Sample, lexicon: Lexicon, derived: Derived): void {
    const { counts, mean } = derived.overview;
    if (!counts) {
      this.positions.show([], "");
      this.tokens.show([], "");
      return;
    }
    const { rows, keys, scale } = derived;
    const positions = positionTable(sample, mean, counts, rows, keys, scale);
    this.positions.show(
      positions.map((row) => this.positionRow(row, lexicon)),
      `Tokens are those of the finished sequence. ${rows === 1 ? SCORE : `${SCORE} It is the mean of all ${rows} maps, so it can lie below what one map has to pass.`}`,
    );
    const tokens = tokenTable(sample, mean, counts);
    this.tokens.show(
      tokens.map((row) => tr(named(lexicon, row.token), percent(row.sinks), percent(row.base), `${short(row.lift)}×`)),
      "Tokens are those that stood there at the step: what was written later is still a blank here.",
    );
  }

  private positionRow(row: PositionRow, lexicon: Lexicon): HTMLElement {
    const button = el(
      "button",
      { type: "button", class: "quiet pin", "aria-label": `Pin position ${row.position}` },
      String(row.position),
    );
    button.addEventListener("click", () => this.pin(row.position));
    return tr(button, named(lexicon, row.token), `${row.steps} of ${row.existed}`, percent(row.maps), short(row.score));
  }
}

const SCORE = "The score is the mean over the steps at which the key was a sink.";

const POSITION_COLUMNS: Column[] = [
  { name: "position", about: "Counted from 0, the first token of the prompt" },
  { name: "token", about: "The token in the finished sequence" },
  { name: "steps", about: "Steps at which a map in view holds it as a sink, of those at which it exists" },
  { name: "maps", about: "Share of the layers, heads and steps in view in which it is a sink" },
  { name: "mean score", about: "On the chosen scale, over the steps at which a map in view holds it as a sink" },
];

const TOKEN_COLUMNS: Column[] = [
  { name: "token", about: "What stood at the position at that step" },
  { name: "of sinks", about: "Share of all sinks that stood on this token" },
  { name: "of cells", about: "Its share of all steps and positions" },
  { name: "lift", about: "The first share over the second" },
];

function named(lexicon: Lexicon, token: number): HTMLElement {
  return el("bdi", {}, tokenName(lexicon, token));
}

function tr(...cells: (Node | string)[]): HTMLElement {
  return el("tr", {}, ...cells.map((cell) => el("td", {}, cell)));
}
