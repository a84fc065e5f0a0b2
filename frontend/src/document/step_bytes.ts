// The bytes of one array, a step at a time: held whole in memory, or fetched from a local server as they are needed.

import { fromBase64, gunzip, undoDelta } from "./bytes";
import type { ArraySpec } from "./types";

export interface StepBytes {
  /** The bytes of a step if they are at hand. */
  peek(step: number): Uint8Array | null;
  load(step: number): Promise<Uint8Array>;
}

/** How much of a served array stays in memory. */
const BUDGET = 192 * 2 ** 20;

class WholeBytes implements StepBytes {
  constructor(
    private readonly bytes: Uint8Array,
    private readonly size: number,
  ) {}

  peek(step: number): Uint8Array {
    return this.bytes.subarray(step * this.size, (step + 1) * this.size);
  }

  load(step: number): Promise<Uint8Array> {
    return Promise.resolve(this.peek(step));
  }
}

/** Keeps the steps used last, as many as the budget holds; a step asked for twice at once is fetched once. */
export class FetchedBytes implements StepBytes {
  private readonly kept = new Map<number, Uint8Array>();
  private readonly coming = new Map<number, Promise<Uint8Array>>();
  private readonly most: number;

  constructor(
    private readonly fetchStep: (step: number) => Promise<Uint8Array>,
    size: number,
    budget = BUDGET,
  ) {
    this.most = Math.max(2, Math.floor(budget / Math.max(1, size)));
  }

  peek(step: number): Uint8Array | null {
    const bytes = this.kept.get(step);
    if (bytes === undefined) return null;
    this.kept.delete(step);
    this.kept.set(step, bytes);
    return bytes;
  }

  load(step: number): Promise<Uint8Array> {
    const here = this.peek(step);
    if (here) return Promise.resolve(here);
    const pending = this.coming.get(step);
    if (pending) return pending;
    const fresh = this.fetchStep(step)
      .then((bytes) => this.keep(step, bytes))
      .finally(() => this.coming.delete(step));
    this.coming.set(step, fresh);
    return fresh;
  }

  private keep(step: number, bytes: Uint8Array): Uint8Array {
    this.kept.set(step, bytes);
    for (const oldest of this.kept.keys()) {
      if (this.kept.size <= this.most) break;
      this.kept.delete(oldest);
    }
    return bytes;
  }
}

/** The server's own line; without one, the number of its answer. */
async function refusal(response: Response): Promise<string> {
  const plain = response.headers.get("Content-Type")?.startsWith("text/plain");
  const line = plain ? (await response.text()).trim() : "";
  return line || `the server answered ${response.status}`;
}

export async function fetchBytes(url: string): Promise<Uint8Array<ArrayBuffer>> {
  const response = await fetch(new URL(url, document.baseURI)).catch(() => null);
  if (!response) throw new Error(`${url} could not be read: the server does not answer`);
  if (!response.ok) throw new Error(`${url} could not be read: ${await refusal(response)}`);
  return gunzip(new Uint8Array(await response.arrayBuffer()));
}

/** All bytes of an array that comes whole. */
export async function wholeBytes(spec: ArraySpec): Promise<Uint8Array<ArrayBuffer>> {
  if (spec.data !== undefined) return gunzip(fromBase64(spec.data));
  if (spec.url !== undefined) return fetchBytes(spec.url);
  throw new Error("an array of this report has neither data nor an address");
}

/** `itemsize` bytes for each number of a step. */
export async function openSteps(spec: ArraySpec, itemsize: number): Promise<StepBytes> {
  const size = itemsize * spec.shape.slice(1).reduce((product, length) => product * length, 1);
  if (spec.url !== undefined && spec.per_step) {
    return new FetchedBytes((step) => fetchBytes(`${spec.url}/${step}`), size);
  }
  const bytes = await wholeBytes(spec);
  if (spec.delta === "step") undoDelta(bytes, size);
  return new WholeBytes(bytes, size);
}
