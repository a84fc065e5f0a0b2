import { expect, it } from "vitest";
import { floatText, general } from "../src/sinks/python_numbers";

it.each([
  [3, "3"],
  [0.1, "0.1"],
  [0, "0"],
  [1e6, "1e+06"],
  [999999, "999999"],
  [1234567, "1.23457e+06"],
  [0.0001, "0.0001"],
  [0.00001, "1e-05"],
  [2.5e-7, "2.5e-07"],
  [-1.25, "-1.25"],
  [1 / 3, "0.333333"],
  [NaN, "nan"],
  [Infinity, "inf"],
])("%s as %%g", (value, text) => expect(general(value)).toBe(text));

it("takes a number of digits", () => expect(general(Math.sqrt(32), 3)).toBe("5.66"));

it.each([
  [1, "1.0"],
  [-1, "-1.0"],
  [1.5, "1.5"],
  [NaN, "nan"],
  [-Infinity, "-inf"],
])("%s as a float", (value, text) => expect(floatText(value)).toBe(text));
