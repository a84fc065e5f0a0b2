// What every part of the page is given.

import type { Library } from "../document/reading";
import type { Store } from "../state/state";
import type { Failure } from "./failure";
import type { Live } from "./live";
import type { Tip } from "./tip";

export interface Context {
  library: Library;
  store: Store;
  tip: Tip;
  live: Live;
  /** Asks for a redraw at the next frame. */
  redraw(): void;
  failure: Failure;
}
