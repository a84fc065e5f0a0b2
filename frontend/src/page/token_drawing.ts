// The token view as an SVG: what is on the page, box for box.

import { svg } from "./element";

interface Corner {
  left: number;
  top: number;
}

export function tokenDrawing(list: HTMLElement, background: string): SVGSVGElement {
  // All of it, what is scrolled out of view too.
  const box = list.getBoundingClientRect();
  const frame = { left: box.left, top: box.top - list.scrollTop };
  const size = { width: Math.ceil(box.width), height: Math.ceil(Math.max(box.height, list.scrollHeight)) };
  const drawing = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    ...size,
    viewBox: `0 0 ${size.width} ${size.height}`,
  });
  drawing.append(svg("rect", { width: "100%", height: "100%", fill: background }));
  for (const cell of list.querySelectorAll<HTMLElement>("li[role=option]")) drawing.append(...boxOf(cell, frame));
  return drawing;
}

function boxOf(cell: HTMLElement, frame: Corner): SVGElement[] {
  const style = getComputedStyle(cell);
  const box = cell.getBoundingClientRect();
  const x = box.left - frame.left;
  const y = box.top - frame.top;
  const outline = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
  const border = outline > 0 ? style.outlineColor : style.borderTopColor;
  const parts: SVGElement[] = [
    svg("rect", {
      x: x + 0.5,
      y: y + 0.5,
      width: Math.max(1, box.width - 1),
      height: Math.max(1, box.height - 1),
      rx: 3,
      fill: style.backgroundColor,
      stroke: border,
      "stroke-width": Math.max(1, outline),
      "stroke-dasharray": outline === 0 && style.borderTopStyle === "dashed" ? "3 2" : undefined,
    }),
  ];
  if (cell.classList.contains("generated")) {
    parts.push(
      svg("rect", {
        x: x - 8,
        y,
        width: 2,
        height: box.height,
        fill: getComputedStyle(cell, "::before").borderLeftColor,
      }),
    );
  }
  if (cell.classList.contains("commits")) {
    parts.push(
      svg("rect", { x: x + 1, y: y + box.height - 4, width: box.width - 2, height: 3, fill: style.borderTopColor }),
    );
  }
  if (cell.classList.contains("pinned")) {
    parts.push(svg("rect", { x, y: y + box.height + 1, width: box.width, height: 2.5, fill: style.outlineColor }));
  }
  const words = cell.querySelector("bdi")?.textContent ?? "";
  if (words !== "") parts.push(text(cell, words, style, frame));
  return parts;
}

function text(cell: HTMLElement, words: string, style: CSSStyleDeclaration, frame: Corner): SVGElement {
  const { fontFamily, fontSize, fontStyle } = getComputedStyle(cell.querySelector("bdi")!);
  const inner = cell.querySelector("bdi")!.getBoundingClientRect();
  const element = svg(
    "text",
    {
      x: inner.left - frame.left + inner.width / 2,
      y: inner.top - frame.top + inner.height / 2,
      fill: style.color,
      "font-family": fontFamily,
      "font-size": fontSize,
      "font-style": fontStyle,
      "text-anchor": "middle",
      "dominant-baseline": "central",
    },
    words,
  );
  element.setAttributeNS("http://www.w3.org/XML/1998/namespace", "xml:space", "preserve");
  return element;
}
