// Elements without HTML in strings: whatever comes from a trace can only ever be text.

type Child = Node | string | null | undefined;
type Attributes = Record<string, string | number | boolean | null | undefined>;

function fill<T extends Element>(element: T, attributes: Attributes, children: Child[]): T {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** An element of the page's own skeleton, which is there or the page was built wrong. */
export function find<T extends Element>(selector: string, within: ParentNode = document): T {
  const found = within.querySelector<T>(selector);
  if (!found) throw new Error(`the page lacks ${selector}`);
  return found;
}

/** Options of a `<select>`, kept as they are where nothing changed. */
export function setOptions(select: HTMLSelectElement, options: readonly [string, string][], chosen: string): void {
  const key = JSON.stringify(options);
  if (select.dataset["options"] !== key) {
    select.replaceChildren(...options.map(([value, label]) => el("option", { value }, label)));
    select.dataset["options"] = key;
  }
  if (select.value !== chosen) select.value = chosen;
}

export function setText(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}
