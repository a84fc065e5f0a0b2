// What panes side by side share, so that they can be compared: axes, heights and colours.

import type { Shades } from "../charts/shading";
import type { Extent } from "../charts/step_map";

export interface Common {
  frame: Extent;
  shades: Shades;
  /** Where the axis of each chart of curves ends. */
  tops: Record<string, number>;
  /** The highest value in the maps of layers and heads. */
  peak: number;
  /** Whether any pane has full maps; where none has, there is no card for them. */
  maps: boolean;
}
