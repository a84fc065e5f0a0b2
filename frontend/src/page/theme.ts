// Light or dark: as the system has it, or as the reader chose.

import type { Theme } from "../state/state";
import { find, setText } from "./element";

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const system = window.matchMedia("(prefers-color-scheme: dark)");

export function isDark(theme: Theme): boolean {
  return theme === "auto" ? system.matches : theme === "dark";
}

export function nextTheme(theme: Theme): Theme {
  return NEXT[theme];
}

export function applyTheme(theme: Theme): void {
  document.documentElement.dataset["theme"] = isDark(theme) ? "dark" : "light";
  setText(find("#theme"), `Theme: ${theme}`);
}

export function onSystemTheme(changed: () => void): void {
  system.addEventListener("change", changed);
}
