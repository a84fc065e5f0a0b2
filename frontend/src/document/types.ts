// The document that a report carries, as the Python side writes it. Arrays are C-ordered, the first axis is the step.

export interface LogEncoding {
  kind: "log";
  low: number;
  high: number;
  codes: number;
  /** What no code stands for more than: 1 of shares of attention, whose scale ends up to a step above it. */
  most: number | null;
  missing: number;
  zero: number;
  worst_relative_error: number;
}

export interface ArraySpec {
  dtype: "uint8" | "int32" | "float32" | "bits";
  shape: number[];
  encoding: LogEncoding | null;
  /** "step": the bytes of every later step are differences, modulo 256, from the step before. */
  delta?: "step";
  /** base64 of the gzip of the bytes, in a saved report. */
  data?: string;
  /** Where a local server has the bytes; with `per_step`, `url/<step>` has one step of them. */
  url?: string;
  per_step?: boolean;
}

export interface SampleSpec {
  id: string;
  prompt_length: number;
  complete: boolean;
  bidirectional: boolean;
  mask_token_id: number | null;
  special_ids: number[];
  text: string | null;
  steps: number;
  layers: number;
  heads: number;
  positions: number;
  layer_numbers: number[];
  head_numbers: number[];
  /** How many heads each layer has, where not all have as many. */
  layer_heads: number[] | null;
  groups: string[];
  /** Which steps, layers and heads the full maps are of, by their numbers. */
  maps: { steps: number[]; layers: number[]; heads: number[] } | null;
  tokens: Record<string, string> | null;
  intervention: unknown;
  final_sequence: number[];
  arrays: Record<string, ArraySpec>;
}

export interface TraceSpec {
  name: string;
  provenance: unknown;
  samples: SampleSpec[];
}

export interface PageDocument {
  version: number;
  title: string;
  traces: TraceSpec[];
}

export const VERSION = 1;

/** The element that carries the document; its text is let go once it is read. */
export const DATA_ELEMENT = "sinkscope-data";
