import { describe, expect, it } from "vitest";
import { Deriver, leadingKey } from "../src/measure/derived";
import { keyCounts, keysPerStep } from "../src/measure/key_counts";
import { atPosition, strongest } from "../src/measure/layer_heads";
import { Measured } from "../src/measure/measures";
import { Model } from "../src/measure/model";
import { MeanMap, SinkCounts } from "../src/measure/overview";
import { MOST, SOME, cutLine, sinkMarks, topTrack } from "../src/measure/profile";
import { FactStore } from "../src/measure/row_facts";
import { type Selection, chosenRows } from "../src/measure/selection";
import { peekRows } from "../src/measure/step_rows";
import { spread, subjectOf } from "../src/measure/subject";
import { positionTable, tokenTable } from "../src/measure/tables";
import type { Sample } from "../src/document/sample";
import { mapWords } from "../src/page/attention_panel";
import { mapMarks } from "../src/page/summaries";
import { members, offered } from "../src/sinks/groups";
import { Excess } from "../src/sinks/excess";
import { Threshold } from "../src/sinks/threshold";
import { HEADS, LAYERS, POSITIONS, STEPS, sample } from "./rows";

const ALL_ROWS: Selection = { group: "all", layer: null, head: null };

/** The value of a cell, straight from the codes. */
function cell(of: Sample, step: number, layer: number, head: number, position: number): number {
  return of.received.table[of.received.bytes.peek(step)![(layer * HEADS + head) * POSITIONS + position]];
}

function maps(of: Sample, selection: Selection, rule: Excess): { mean: MeanMap; counts: SinkCounts } {
  const mean = new MeanMap(STEPS, POSITIONS);
  const counts = new SinkCounts(STEPS, POSITIONS, rule);
  const facts = new FactStore(of);
  for (let step = 0; step < STEPS; step++) {
    const rows = peekRows(of, selection.group, step)!;
    mean.fill(step, rows, chosenRows(of, selection));
    counts.fill(step, rows, chosenRows(of, selection), facts);
  }
  return { mean, counts };
}

describe("the mean map", () => {
  it("averages all layers and heads, one layer, one head", () => {
    const of = sample(1);
    const { mean } = maps(of, ALL_ROWS, new Excess(1, "sum"));
    let sum = 0;
    for (let layer = 0; layer < LAYERS; layer++)
      for (let head = 0; head < HEADS; head++) sum += cell(of, 2, layer, head, 3);
    expect(mean.at(2)[3]).toBeCloseTo(sum / (LAYERS * HEADS), 12);
    const one = maps(of, { group: "all", layer: 1, head: 2 }, new Excess(1, "sum")).mean;
    expect(one.at(4)[5]).toBe(cell(of, 4, 1, 2, 5));
    const layer = maps(of, { group: "all", layer: 1, head: null }, new Excess(1, "sum")).mean;
    expect(layer.at(0)[0]).toBeCloseTo((cell(of, 0, 1, 0, 0) + cell(of, 0, 1, 1, 0) + cell(of, 0, 1, 2, 0)) / 3, 12);
    expect(mean.left).toBe(0);
  });

  it("has no value where no key exists", () => {
    const { mean } = maps(sample(2, true), ALL_ROWS, new Excess(1, "sum"));
    expect([...mean.at(1)].map(Number.isNaN)).toEqual([false, false, false, false, true, true, true]);
  });
});

describe("groups of queries", () => {
  it("offers unions of what was recorded", () => {
    expect(offered(["prompt", "later"])).toEqual(["all", "masked", "prompt", "later"]);
    expect(members("masked", ["prompt", "later", "block-masked"])).toEqual([2, 1]);
  });

  it("weights the atoms of a union by their queries", () => {
    const of = sample(3);
    const codes = of.byGroup!.bytes.peek(1)!;
    const at = (layer: number, group: number, position: number): number =>
      of.byGroup!.table[codes[(layer * 3 + group) * POSITIONS + position]];
    const row = new Float64Array(POSITIONS);
    peekRows(of, "masked", 1)!.read(1, row);
    expect(row[6]).toBeCloseTo((3 * at(1, 1, 6) + 4 * at(1, 2, 6)) / 7, 12);
  });

  it("is nothing where nobody asks", () => {
    const of = sample(3);
    expect([...keysPerStep(of, "later")]).toEqual([7, 7, 0, 0, 0]);
    expect(keyCounts(keysPerStep(of, "later"), "later")).toEqual({ fewest: 7, most: 7 });
    const { mean, counts } = maps(of, { group: "later", layer: null, head: null }, new Excess(0, "sum"));
    expect(mean.at(3).every(Number.isNaN)).toBe(true);
    expect(counts.sinks[3]).toBe(0);
    expect(keyCounts(new Int32Array(3), "later")).toBe(
      "no received attention by queries 'later' at any step: choose another group or other steps",
    );
  });

  it("leaves out heads that a layer lacks", () => {
    const of = sample(3);
    of.spec.layer_heads = [3, 2];
    expect(chosenRows(of, ALL_ROWS)).toEqual([0, 1, 2, 3, 4]);
    expect(chosenRows(of, { group: "all", layer: null, head: 2 })).toEqual([2]);
    expect(chosenRows(of, { group: "prompt", layer: null, head: null })).toEqual([0, 1]);
    of.received.bytes.peek(1)!.fill(255, 5 * POSITIONS, 6 * POSITIONS);
    expect(Array.from(strongest(peekRows(of, "all", 1)!), Number.isNaN)).toEqual([
      false,
      false,
      false,
      false,
      false,
      true,
    ]);
    const mean = new MeanMap(STEPS, POSITIONS);
    mean.fill(1, peekRows(of, "all", 1)!, chosenRows(of, ALL_ROWS));
    const first = [0, 1, 2, 3, 4].map((row) => cell(of, 1, Math.floor(row / HEADS), row % HEADS, 0));
    expect(mean.at(1)[0]).toBeCloseTo(first.reduce((a, b) => a + b, 0) / 5, 12);
  });

  it("takes the mean of heads for its rows", () => {
    expect(chosenRows(sample(3), { group: "prompt", layer: 1, head: null })).toEqual([1]);
  });
});

describe("counts of sinks", () => {
  it.each([false, true])("are those of every row, causal: %s", (causal) => {
    const of = sample(5, causal);
    const rule = new Excess(0.8, "sum");
    const { counts } = maps(of, ALL_ROWS, rule);
    for (let step = 0; step < STEPS; step++) {
      const held = new Array<number>(POSITIONS).fill(0);
      for (let layer = 0; layer < LAYERS; layer++) {
        for (let head = 0; head < HEADS; head++) {
          const row = Array.from({ length: POSITIONS }, (_, position) => cell(of, step, layer, head, position));
          const there = row.filter((value) => !Number.isNaN(value));
          const total = there.reduce((a, b) => a + b, 0);
          row.forEach((value, at) => {
            const others = (total - value) / (there.length - 1);
            if (there.length * (value - others) > 0.8) held[at]++;
          });
        }
      }
      expect([...counts.held.subarray(step * POSITIONS, (step + 1) * POSITIONS)]).toEqual(held);
      expect(counts.sinks[step]).toBe(held.reduce((a, b) => a + b, 0));
    }
  });
});

describe("profiles", () => {
  it("the strongest key goes to the lower position when tied", () => {
    const mean = new MeanMap(2, 3);
    mean.values.set([0.4, 0.4, 0.2, NaN, NaN, NaN]);
    mean.done.fill(1);
    expect([...topTrack(mean)]).toEqual([0, -1]);
  });

  it("the cut parts what is shown", () => {
    const of = sample(6);
    const rule = new Excess(0.5, "sum");
    const { mean, counts } = maps(of, { ...ALL_ROWS, layer: 1, head: 2 }, rule);
    const keys = keysPerStep(of, "all");
    const cuts = cutLine(mean, rule, keys, "sum");
    const sinks = sinkMarks(counts, mean.values.length, 1);
    mean.values.forEach((value, at) => {
      expect(sinks[at] === MOST).toBe(value * POSITIONS > cuts[Math.floor(at / POSITIONS)]);
    });
    expect(sinks.some((mark) => mark === MOST)).toBe(true);
  });

  it("marks of several rows part sinks of most from sinks of some", () => {
    const { mean, counts } = maps(sample(6), ALL_ROWS, new Excess(0.1, "sum"));
    const marks = sinkMarks(counts, mean.values.length, 6);
    counts.held.forEach((held, at) => expect(marks[at]).toBe(held === 0 ? 0 : held >= 3 ? MOST : SOME));
    expect(new Set(marks)).toEqual(new Set([0, SOME, MOST]));
  });

  it("the layer x head map of a step", () => {
    const of = sample(8, true);
    const rows = peekRows(of, "all", 0)!;
    const expected = Math.max(...[0, 1, 2].map((position) => cell(of, 0, 1, 2, position)));
    expect(strongest(rows)[5]).toBe(expected);
    expect(atPosition(rows, 1)[4]).toBe(cell(of, 0, 1, 1, 1));
    expect(atPosition(rows, 6)[4]).toBeNaN();
  });
});

describe("tables", () => {
  const of = sample(9);
  const rule = new Excess(0.6, "sum");
  const { mean, counts } = maps(of, ALL_ROWS, rule);
  const keys = keysPerStep(of, "all");

  it("count the maps that hold a position", () => {
    const table = positionTable(of, mean, counts, 6, keys, "percent");
    const row = table.find(({ position }) => position === 2)!;
    let held = 0,
      score = 0,
      steps = 0;
    for (let step = 0; step < STEPS; step++) {
      const here = counts.held[step * POSITIONS + 2];
      held += here;
      if (here > 0) steps++;
      score += here > 0 ? 100 * mean.at(step)[2] : 0;
    }
    // Else the mean over all steps would be the same.
    expect(steps).toBeGreaterThan(0);
    expect(steps).toBeLessThan(STEPS);
    expect(row.maps).toBeCloseTo(held / (STEPS * 6), 12);
    expect(row.score).toBeCloseTo(score / steps, 12);
    expect(row.existed).toBe(STEPS);
    expect(table.map((each) => each.steps)).toEqual(table.map((each) => each.steps).sort((a, b) => b - a));
  });

  it("set tokens beside their base rates", () => {
    const table = tokenTable(of, mean, counts);
    expect(table.reduce((sum, row) => sum + row.sinks, 0)).toBeCloseTo(1, 12);
    const mask = table.find(({ token }) => token === 9)!;
    expect(mask.base).toBeCloseTo(3 / 7, 12);
    expect(mask.lift).toBeCloseTo(mask.sinks / mask.base, 12);
  });
});

describe("a full map in words", () => {
  const found = (queries: number[], missing: number[]): string[] => {
    const values = new Float64Array(5 * 5).fill(NaN);
    for (const query of queries)
      for (let key = 0; key < 5; key++) if (!missing.includes(key)) values[5 * query + key] = 0.2;
    const { title, hatched } = mapWords({ step: 12, values, queries: 5, of: 1 });
    return [title, hatched];
  };

  it("says how many queries there are, and what is hatched", () => {
    expect(found([0, 1, 2, 3, 4], [])).toEqual(["Full map of step 12", ""]);
    expect(found([0, 1, 2, 3, 4], [4])[1]).toMatch(/can't see/);
    expect(found([3], [4])[0]).toBe("Step 12, one query (position 3)");
    expect(found([2, 3], [])).toEqual(["Step 12, 2 queries", expect.stringMatching(/^Hatched: .*not computed/)]);
  });
});

describe("the key to begin with", () => {
  const key = (held: number[], scores: number[]): number => {
    const overview = { mean: { positions: 3 }, counts: { held: Uint32Array.from(held) } };
    return leadingKey({ overview, scores: Float64Array.from(scores) } as unknown as Parameters<typeof leadingKey>[0]);
  };

  it("is a sink most often, else receives most", () => {
    expect(key([0, 1, 2, 0, 1, 1], [9, 1, 1, 9, 1, 1])).toBe(2);
    expect(key([0, 1, 1, 0, 1, 1], [9, 1, 1, 9, 2, 1])).toBe(1);
    expect(key([0, 0, 0, 0, 0, 0], [1, 5, 1, 4, NaN, 1])).toBe(0);
    expect(key([0, 0, 0], [NaN, NaN, NaN])).toBe(-1);
  });
});

describe("the model", () => {
  it("finds the highest of all steps once they are known, and of those seen before", async () => {
    const of = sample(6);
    let told = 0;
    const model = new Model(
      of,
      () => told++,
      (error) => expect.unreachable(error.message),
    );
    const at = [3, 8, 2, 7, 1];
    const peak = (here: number, settled: boolean): number => model.peak("a", here, settled, "all", (step) => at[step]);
    expect([peak(3, false), peak(2, false)]).toEqual([3, 3]);
    peak(2, true);
    await expect.poll(() => peak(2, true)).toBe(8);
    expect(peak(1, true)).toBe(8);
    expect(told).toBeGreaterThan(0);
  });

  it("fills the step in view at once and the others after it", async () => {
    const of = sample(11);
    let told = 0;
    const model = new Model(
      of,
      () => told++,
      (error) => {
        throw error;
      },
    );
    const first = model.overview(ALL_ROWS, new Excess(1, "sum"), 3);
    expect(first.mean.done[3]).toBe(1);
    await new Promise((done) => setTimeout(done, 60));
    expect(first.mean.left).toBe(0);
    expect(first.counts!.left).toBe(0);
    expect(told).toBeGreaterThan(0);
  });

  it("derives again only when something changed", async () => {
    const model = new Model(
      sample(11),
      () => undefined,
      (error) => {
        throw error;
      },
    );
    const deriver = new Deriver(model);
    const rule = new Excess(1, "sum");
    deriver.derive(ALL_ROWS, rule, "sum", 0);
    await new Promise((done) => setTimeout(done, 60));
    const complete = deriver.derive(ALL_ROWS, rule, "sum", 0);
    expect(complete.complete).toBe(true);
    expect(deriver.derive(ALL_ROWS, rule, "sum", 4)).toBe(complete);
    expect(deriver.derive(ALL_ROWS, new Excess(2, "sum"), "sum", 4)).not.toBe(complete);
    expect(deriver.derive(ALL_ROWS, rule, "percent", 4).highest).toBeCloseTo((complete.highest * 100) / POSITIONS, 10);
  });

  it("reads a step again that could not be read", async () => {
    const of = sample(11);
    const { peek } = of.received.bytes;
    let gone = true;
    of.received.bytes = {
      peek: (step) => (step === 2 && gone ? null : peek(step)),
      load: (step) => (gone ? Promise.reject(new Error("gone")) : Promise.resolve(peek(step)!)),
    };
    const failures: string[] = [];
    const model = new Model(
      of,
      () => undefined,
      (error) => failures.push(error.message),
    );
    const rule = new Excess(1, "sum");
    model.overview(ALL_ROWS, rule, 0);
    await new Promise((done) => setTimeout(done, 60));
    expect(failures).toEqual(["gone"]);
    gone = false;
    const { mean } = model.overview(ALL_ROWS, rule, 0);
    await new Promise((done) => setTimeout(done, 60));
    expect(mean.left).toBe(0);
  });

  it("marks sinks of single maps, where their mean has none", async () => {
    const of = sample(11);
    const model = new Model(
      of,
      () => undefined,
      (error) => {
        throw error;
      },
    );
    const deriver = new Deriver(model);
    const mean = new Excess(3.5, "sum");
    deriver.derive(ALL_ROWS, mean, "sum", 0);
    await new Promise((done) => setTimeout(done, 60));
    const derived = deriver.derive(ALL_ROWS, mean, "sum", 0);
    expect(derived.overview.counts!.sinks.some((count) => count > 0)).toBe(true);
    const cuts = cutLine(derived.overview.mean, mean, derived.keys, "sum");
    expect(derived.scores.some((score, at) => score > cuts[Math.floor(at / POSITIONS)])).toBe(false);
    expect(derived.sinks).toContain(SOME);
    expect(mapMarks(of, derived)).toMatch(/^Rings: sinks, thin in one in twenty of 6 maps/);
  });

  it("refuses in one line", () => {
    const model = new Model(
      sample(11),
      () => undefined,
      () => undefined,
    );
    expect(model.refusal(new Excess(7, "sum"), "all")).toContain("with 7 keys");
    expect(model.refusal(new Excess(6, "sum"), "all")).toBeNull();
  });
});

describe("where a page opens", () => {
  it.each([3, 11, 12])("at the layer and head with a sink at most steps (%i)", async (seed) => {
    const of = sample(seed);
    const rule = new Excess(1.2, "sum");
    const model = new Model(
      of,
      () => {},
      (error) => {
        throw error;
      },
    );
    const found = await subjectOf(of, model, rule);
    const steps: number[] = [];
    for (let row = 0; row < LAYERS * HEADS; row++) {
      const [layer, head] = [Math.floor(row / HEADS), row % HEADS];
      const { counts } = maps(of, { ...ALL_ROWS, layer, head }, rule);
      steps.push(counts.sinks.reduce((sum, count) => sum + (count > 0 ? 1 : 0), 0));
    }
    expect(found).not.toBeNull();
    expect(steps[found!.layer * HEADS + found!.head]).toBe(Math.max(...steps));
    const row = Array.from({ length: POSITIONS }, (_, at) => cell(of, found!.step, found!.layer, found!.head, at));
    expect(row[found!.position]).toBe(Math.max(...row.filter((value) => !Number.isNaN(value))));
  });

  it("at the mean where no map has a sink", async () => {
    const of = sample(3);
    const model = new Model(
      of,
      () => {},
      () => {},
    );
    expect(await subjectOf(of, model, new Threshold(0.98))).toBeNull();
    expect(await subjectOf(of, model, new Excess(99, "sum"))).toBeNull();
  });

  it("looks at the first and the last step", () => {
    expect(spread(1)).toEqual([0]);
    expect(spread(5)).toEqual([0, 1, 2, 3, 4]);
    expect(spread(128)).toEqual([0, 25, 51, 76, 102, 127]);
  });
});

describe("numbers beside received attention", () => {
  it("are means over what there is", () => {
    const of = sample(4, true);
    const measured = new Measured(
      of,
      () => {},
      () => {},
    );
    const { table, bytes } = of.measures.entropy!;
    const known = (row: number): number[] =>
      [...bytes.peek(2)!.subarray(row * POSITIONS, (row + 1) * POSITIONS)].map((code) => table[code]);
    const mean = (values: number[]): number => {
      const there = values.filter((value) => !Number.isNaN(value));
      return there.reduce((a, b) => a + b, 0) / there.length;
    };
    expect(measured.names).toEqual(["entropy"]);
    expect(measured.byRow("entropy", 2)[5]).toBeCloseTo(mean(known(5)), 12);
    expect(measured.at("entropy", 2, [1, 4], 0)).toBeCloseTo(mean([known(1)[0], known(4)[0]]), 12);
  });
});
