// Starts the page: reads the document it carries, or says why it cannot.

import { Library, readDocument } from "./document/reading";
import { App } from "./page/app";
import { Failure } from "./page/failure";

const failure = new Failure();

try {
  new App(new Library(readDocument(document)), failure);
} catch (error) {
  failure.tell(error);
}
