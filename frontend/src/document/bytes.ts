// From the text of a report to bytes: base64, then the browser's own gzip.

interface Base64Reader {
  fromBase64?: (text: string) => Uint8Array<ArrayBuffer>;
}

/** Newer engines read base64 themselves; `atob` is the way of the others. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const reader = Uint8Array as unknown as Base64Reader;
  if (reader.fromBase64) return reader.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export async function gunzip(packed: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The bits of `numpy.packbits` (the first is the highest of its byte), one byte each. */
export function unpackBits(packed: Uint8Array, count: number): Uint8Array {
  const bits = new Uint8Array(count);
  for (let i = 0; i < count; i++) bits[i] = (packed[i >> 3] >> (7 - (i & 7))) & 1;
  return bits;
}

/** Adds up differences from step to step, in place: `size` bytes a step. */
export function undoDelta(bytes: Uint8Array, size: number): void {
  for (let i = size; i < bytes.length; i++) bytes[i] = (bytes[i] + bytes[i - size]) & 255;
}
