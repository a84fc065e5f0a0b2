import { describe, expect, it } from "vitest";
import { fromBase64, gunzip, undoDelta, unpackBits } from "../src/document/bytes";
import { lookupTable } from "../src/document/codes";
import { commitSteps } from "../src/document/sample";
import { readBits, readFloat32, readInt32 } from "../src/document/small_array";
import { FetchedBytes, openSteps } from "../src/document/step_bytes";
import type { ArraySpec } from "../src/document/types";
import { ENCODING } from "./rows";

async function packed(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"));
  return btoa(String.fromCharCode(...new Uint8Array(await new Response(stream).arrayBuffer())));
}

async function spec(dtype: ArraySpec["dtype"], shape: number[], bytes: Uint8Array<ArrayBuffer>): Promise<ArraySpec> {
  return { dtype, shape, encoding: null, data: await packed(bytes) };
}

describe("bytes", () => {
  it("come back from base64 and gzip", async () => {
    const bytes = Uint8Array.from({ length: 1009 }, (_, at) => (at * 7) % 256);
    expect(await gunzip(fromBase64(await packed(bytes)))).toEqual(bytes);
  });

  it("bits are read from the highest of a byte on", () => {
    expect([...unpackBits(Uint8Array.of(0b10100000, 0b01000000), 11)]).toEqual([1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0]);
  });

  it("differences from step to step add up modulo 256", async () => {
    const bytes = Uint8Array.of(250, 3, 10, 255, 1, 0);
    undoDelta(bytes, 2);
    expect([...bytes]).toEqual([250, 3, 4, 2, 5, 2]);
    const steps = await openSteps(
      { ...(await spec("uint8", [3, 2], Uint8Array.of(250, 3, 10, 255, 1, 0))), delta: "step" },
      1,
    );
    expect([...steps.peek(2)!]).toEqual([5, 2]);
  });
});

describe("small arrays", () => {
  it("are little-endian", async () => {
    expect(await readInt32(await spec("int32", [2], Uint8Array.of(1, 0, 0, 0, 255, 255, 255, 255)))).toEqual(
      Int32Array.of(1, -1),
    );
    expect(await readFloat32(await spec("float32", [1], Uint8Array.of(0, 0, 128, 63)))).toEqual(Float32Array.of(1));
  });

  it("that are missing are null", async () => expect(await readInt32(undefined)).toBeNull());

  it("of bits have a byte a bit", async () => {
    const bits = await readBits(await spec("bits", [2, 3], Uint8Array.of(0b01100100)));
    expect([...bits!]).toEqual([0, 1, 1, 0, 0, 1]);
    expect([...commitSteps(bits, 2, 3)]).toEqual([-1, 0, 0]);
  });

  it("without data or an address are refused", async () => {
    await expect(readInt32({ dtype: "int32", shape: [1], encoding: null })).rejects.toThrow(
      "neither data nor an address",
    );
  });
});

describe("the lookup table", () => {
  const table = lookupTable(ENCODING);

  it("has zero, the ends and missing keys", () => {
    expect(table[0]).toBe(0);
    expect(table[1]).toBeCloseTo(1e-4, 10);
    expect(table[254]).toBe(1);
    expect(table[255]).toBeNaN();
  });

  it("is logarithmic and in single precision", () => {
    expect(table[101] / table[100]).toBeCloseTo(table[201] / table[200], 5);
    for (const value of table.subarray(0, 255)) expect(Math.fround(value)).toBe(value);
  });

  it("has nothing above all attention", () => {
    const moved = lookupTable({ ...ENCODING, low: 1.02e-4, high: 1.02 });
    expect(moved[254]).toBe(1);
    expect(moved[253]).toBeLessThan(1);
  });

  it("rises to its end, also with fewer codes", () => {
    const few = lookupTable({ ...ENCODING, codes: 32 });
    expect(few[32]).toBe(1);
    for (let code = 1; code < 33; code++) expect(few[code]).toBeGreaterThan(few[code - 1]);
    expect(few[33]).toBe(Infinity);
  });
});

describe("a served array", () => {
  it("is fetched once a step, and the steps used last are kept", async () => {
    const asked: number[] = [];
    const bytes = new FetchedBytes(
      (step) => {
        asked.push(step);
        return Promise.resolve(Uint8Array.of(step));
      },
      1,
      2,
    );
    expect(bytes.peek(0)).toBeNull();
    await Promise.all([bytes.load(0), bytes.load(0), bytes.load(1)]);
    expect(asked).toEqual([0, 1]);
    expect(bytes.peek(0)).toEqual(Uint8Array.of(0));
    await bytes.load(2);
    expect(bytes.peek(1)).toBeNull();
    expect(bytes.peek(0)).not.toBeNull();
  });

  it("is asked for again after a failure", async () => {
    let fails = true;
    const bytes = new FetchedBytes(
      () => (fails ? Promise.reject(new Error("gone")) : Promise.resolve(Uint8Array.of(1))),
      1,
    );
    await expect(bytes.load(3)).rejects.toThrow("gone");
    fails = false;
    expect(await bytes.load(3)).toEqual(Uint8Array.of(1));
  });
});
