// Starts the page: reads the document it carries, or says why it cannot.

import { Library, readDocument } from "./document/reading";
import { App } from "./page/app";
import { el, find } from "./page/element";

function fail(error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  document.querySelector("main .failure")?.remove();
  find("#panes").prepend(el("p", { class: "failure", role: "alert" }, message));
}

try {
  new App(new Library(readDocument(document)), fail);
} catch (error) {
  fail(error);
}
