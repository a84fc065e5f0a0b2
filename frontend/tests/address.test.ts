import { describe, expect, it } from "vitest";
import type { PageDocument, SampleSpec } from "../src/document/types";
import { fromHash, toHash } from "../src/state/address";
import { type State, Store, freshState, togglePin } from "../src/state/state";

const spec = {
  positions: 33,
  layer_numbers: [0, 4, 9],
  head_numbers: [0, 1],
  steps: 8,
  groups: ["prompt", "block-masked"],
  arrays: { received_by_group: {}, queries: {} },
} as unknown as SampleSpec;
const DOCUMENT = {
  version: 1,
  title: "",
  traces: [
    { name: "a", provenance: {}, samples: [spec, spec] },
    { name: "b", provenance: {}, samples: [spec] },
  ],
} as PageDocument;

describe("the address", () => {
  it("of the first view names the step alone", () => expect(toHash(freshState())).toBe("step=0"));

  it("brings every part of the state back", () => {
    const state: State = {
      ...freshState(),
      step: 5,
      rule: "threshold",
      scale: "percent",
      shading: "linear",
      metric: "sinks",
      theme: "dark",
      panes: [
        {
          trace: 0,
          sample: 1,
          layer: 9,
          head: null,
          queries: "block-masked",
          settled: true,
          pins: [3, 14],
          pinning: false,
        },
        { trace: 1, sample: 0, layer: null, head: 1, queries: "all", settled: true, pins: [], pinning: false },
      ],
    };
    state.settings = { ...state.settings, threshold: 0.25 };
    expect(fromHash(`#${toHash(state)}`, DOCUMENT)).toEqual(state);
  });

  it("is readable", () => {
    const state = {
      ...freshState(),
      step: 3,
      panes: [{ ...freshState().panes[0], layer: 4, settled: true, pins: [3, 14] }],
    };
    expect(toHash(state)).toBe("step=3&layer=4&pin=3,14");
  });

  it.each([
    "step=-1",
    "step=x",
    "trace=9",
    "layer=1",
    "head=99",
    "pin=33,a,,-2",
    "queries=garbage",
    "queries=later",
    "rule=none",
    "epsilon=abc",
    "scale=%3Cscript%3E",
    "theme=pink",
    "&&&=",
  ])("with nonsense (%s) gives the first view", (hash) => expect(fromHash(hash, DOCUMENT)).toEqual(freshState()));

  it("drops what is not in the document and keeps the rest", () => {
    const state = fromHash("#trace2=7&layer=4&pin=3,99,3", DOCUMENT);
    expect(state.panes.length).toBe(2);
    expect(state.panes[1].trace).toBe(0);
    expect(state.panes[0]).toMatchObject({ layer: 4, pins: [3] });
  });
});

describe("the state", () => {
  it("pins and unpins, five at most", () => {
    expect(togglePin([1, 2], 1)).toEqual([2]);
    expect(togglePin([1, 2, 3, 4, 5], 9)).toEqual([2, 3, 4, 5, 9]);
  });

  it("tells listeners of every change, and changes one pane only", () => {
    const store = new Store({ ...freshState(), panes: [...freshState().panes, ...freshState().panes] });
    let told = 0;
    store.subscribe(() => told++);
    store.updatePane(1, { layer: 3 });
    expect(told).toBe(1);
    expect(store.state.panes.map((pane) => pane.layer)).toEqual([null, 3]);
  });
});
