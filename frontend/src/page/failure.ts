// The line that says what could not be read. It is taken back as soon as something is read again.

import { find, setText } from "./element";

export class Failure {
  private readonly root = find<HTMLElement>("#failure");

  tell(error: unknown): void {
    setText(this.root, error instanceof Error ? error.message : String(error));
    this.root.hidden = false;
  }

  clear(): void {
    this.root.hidden = true;
    setText(this.root, "");
  }
}
