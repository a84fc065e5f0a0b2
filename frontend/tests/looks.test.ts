import { describe, expect, it } from "vitest";
import { type Rgb, colourTable, contrast, luminance, palette } from "../src/charts/colours";
import { circle } from "../src/charts/ink";
import { fileName } from "../src/charts/saving";
import { shades } from "../src/charts/shading";
import { breaksLine, quoted, visible } from "../src/page/glyphs";
import { Lexicon } from "../src/page/lexicon";
import { percent, short, smallPercent } from "../src/page/numbers";
import type { SampleSpec } from "../src/document/types";

function rgb(css: string): Rgb {
  return css.match(/\d+/g)!.map(Number) as unknown as Rgb;
}

/** Viénot, Brettel and Mollon 1999, in linear light: what a viewer without long- or middle-wave cones sees. */
function withoutRed([r, g, b]: Rgb): Rgb {
  const linear = [r, g, b].map((channel) => (channel / 255) ** 2.2);
  const mixed = 0.11238 * linear[0] + 0.88762 * linear[1];
  const blue = 0.00401 * linear[0] - 0.00401 * linear[1] + linear[2];
  return [mixed, mixed, Math.max(0, blue)].map((value) => 255 * value ** (1 / 2.2)) as unknown as Rgb;
}

describe.each([false, true])("the colours, dark: %s", (dark) => {
  const table = colourTable(dark);

  it("go one way in lightness, for every colour vision", () => {
    for (const seen of [table, table.map(withoutRed)]) {
      for (let at = 8; at < 256; at += 8) {
        const step = luminance(seen[at]) - luminance(seen[at - 8]);
        expect(dark ? step : -step).toBeGreaterThan(0);
      }
    }
  });

  it("have ink that can be read on each", () => {
    const { fills, inks } = palette(dark);
    fills.forEach((fill, at) => expect(contrast(rgb(fill), rgb(inks[at]))).toBeGreaterThanOrEqual(4.5));
  });
});

describe("shades", () => {
  it("logarithmic ones begin at half a fair share and reach at least 15", () => {
    const shade = shades("log", 3, 1);
    expect([shade.low, shade.high]).toEqual([0.5, 15]);
    expect([shade.index(0), shade.index(0.5), shade.index(15), shade.index(99), shade.index(NaN)]).toEqual([
      0, 0, 255, 255, -1,
    ]);
    expect(shade.index(Math.sqrt(7.5))).toBe(127);
  });

  it("linear ones begin at nothing", () => {
    const shade = shades("linear", 4, 1);
    expect([shade.index(0), shade.index(2), shade.index(4)]).toEqual([0, 127, 255]);
    expect(shades("linear", 0, 1).index(0)).toBe(0);
  });
});

describe("token texts", () => {
  it.each([
    ["\n", "↵"],
    ["a\tb", "a⇥b"],
    ["", "∅"],
    [" ", "␣"],
    ["  ", "␣␣"],
    [" key", " key"],
    ["\u0000", "␀"],
    ["\u001b[0m", "␛[0m"],
    ["\u007f", "␡"],
    ["\u202eabc", "⟨202E⟩abc"],
    ["\u200b", "⟨200B⟩"],
    ["\ufeff", "⟨FEFF⟩"],
    ["<b>", "<b>"],
    ["שלום", "שלום"],
    ["👩‍🔬", "👩‍🔬"],
    ["\u0085", "⟨0085⟩"],
    ["\ud800", "⟨D800⟩"],
  ])("%j is shown as %j", (text, shown) => expect(visible(text)).toBe(shown));

  it("break the line where they do", () => expect(["\n", "a\nb", "a"].map(breaksLine)).toEqual([true, true, false]));

  it("are shortened in sentences", () => {
    expect(quoted("abc")).toBe("“abc”");
    expect(quoted("🙂".repeat(40))).toBe(`“${"🙂".repeat(23)}…”`);
  });

  it("are numbers where no text is known", () => {
    const spec = { tokens: null, mask_token_id: 3, special_ids: [1, 3] } as unknown as SampleSpec;
    const lexicon = new Lexicon(spec);
    expect(lexicon.text(17)).toBe("#17");
    expect([lexicon.kind(3), lexicon.kind(1), lexicon.kind(2), lexicon.kind(-1)]).toEqual([
      "mask",
      "special",
      "word",
      "nothing",
    ]);
    expect(new Lexicon({ ...spec, tokens: { "17": "<i>" } }).text(17)).toBe("<i>");
  });
});

describe("numbers and names", () => {
  it.each([
    [0, "0"],
    [5.8765, "5.88"],
    [1234.6, "1235"],
    [0.000123, "1.2e-4"],
    [NaN, "–"],
  ])("%s", (value, text) => expect(short(value)).toBe(text));
  it.each([
    [0.17777, "17.8 %"],
    [0.0001, "< 0.1 %"],
    [1, "100 %"],
    [0, "0 %"],
  ])("share %s", (value, text) => expect(percent(value)).toBe(text));

  it("small shares, where they matter", () => expect(smallPercent(2.5e-5)).toBe("0.0025 %"));
  it("of files hold no path", () =>
    expect(fileName("sinkscope", "../a b/č", "0", "map")).toBe("sinkscope_..-a-b_0_map"));
  it("circles close", () => expect(circle(10, 20, 2.5)).toBe("M7.5 20a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0"));
});
