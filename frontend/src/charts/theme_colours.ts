// The colours of the stylesheet that canvases need.

import { type Palette, differenceTable, palette } from "./colours";

export interface ThemeColours {
  paper: string;
  ink: string;
  soft: string;
  accent: string;
  /** Rings at sinks. */
  sink: string;
  /** Where a token is committed. */
  commit: string;
  line: string;
  /** Of the hatching where nothing is. */
  absent: string;
  palette: Palette;
  differences: Palette;
}

/** Of all texts in charts; saved pictures have no stylesheet. */
export const FONT = "Inter, 'Segoe UI', 'Helvetica Neue', 'Noto Sans', 'DejaVu Sans', sans-serif";

export function themeColours(dark: boolean): ThemeColours {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  return {
    paper: read("--card"),
    ink: read("--ink"),
    soft: read("--soft"),
    accent: read("--accent"),
    sink: read("--sink"),
    commit: read("--commit"),
    line: read("--line"),
    absent: read("--absent"),
    palette: palette(dark),
    differences: palette(dark, differenceTable),
  };
}
