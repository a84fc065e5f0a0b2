// The colours of the stylesheet that canvases need.

import { type Palette, palette } from "./colours";

export interface ThemeColours {
  paper: string;
  ink: string;
  soft: string;
  accent: string;
  /** Of the hatching where nothing is. */
  absent: string;
  palette: Palette;
}

export function themeColours(dark: boolean): ThemeColours {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  return {
    paper: read("--card"),
    ink: read("--ink"),
    soft: read("--soft"),
    accent: read("--accent"),
    absent: read("--absent"),
    palette: palette(dark),
  };
}
