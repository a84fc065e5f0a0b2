// Arrays of a few numbers a step (the canvas, what was committed ...): read whole when a sample is opened.

import { unpackBits } from "./bytes";
import { fetchBytes, wholeBytes } from "./step_bytes";
import type { ArraySpec } from "./types";

/** A served array comes a step at a time; its parts are as they would be alone. */
async function parts(spec: ArraySpec): Promise<Uint8Array<ArrayBuffer>[]> {
  if (!spec.per_step || spec.url === undefined) return [await wholeBytes(spec)];
  const steps = Array.from({ length: spec.shape[0] }, (_, step) => fetchBytes(`${spec.url}/${step}`));
  return Promise.all(steps);
}

function joined(pieces: Uint8Array<ArrayBuffer>[]): Uint8Array<ArrayBuffer> {
  if (pieces.length === 1) return pieces[0];
  const whole = new Uint8Array(pieces.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

export async function readInt32(spec: ArraySpec | undefined): Promise<Int32Array | null> {
  if (!spec) return null;
  return new Int32Array(joined(await parts(spec)).buffer);
}

export async function readFloat32(spec: ArraySpec | undefined): Promise<Float32Array | null> {
  if (!spec) return null;
  return new Float32Array(joined(await parts(spec)).buffer);
}

export async function readBits(spec: ArraySpec | undefined): Promise<Uint8Array | null> {
  if (!spec) return null;
  const pieces = await parts(spec);
  const count = spec.shape.reduce((product, length) => product * length, 1);
  const each = count / pieces.length;
  return joined(pieces.map((piece) => unpackBits(piece, each) as Uint8Array<ArrayBuffer>));
}
