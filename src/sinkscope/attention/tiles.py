"""Attention in tiles on a GPU, in Triton: sums over rows and sums over columns, no score outside the chip.

    row_tiles[grid](...)       # a program owns query rows and goes over keys: log sums, entropy, output, removed share
    column_tiles[grid](...)    # a program owns keys and goes over query rows: sums of exp(s - log sum) by weight

Every number has one owner and one order of additions, so results are the same from run to run: there are no atomics.
The row sweep is the online softmax of FlashAttention (arXiv 2205.14135, algorithm 1). `fused` calls both.

Inside, scores are in units of log 2, since a GPU has exp2 and no exp. Half precision is multiplied as it is and summed
in float32; float32 is multiplied as three products of TF32 that make up 22 of its 24 bits (`PRECISION`). Imported only
where Triton is used: with TRITON_INTERPRET=1 set before, the same functions run on a CPU.
"""
# mypy: ignore-errors
# fmt: off

import os

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what Triton does anyway; 3.9 warns where nobody says so
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _scores(q, k, rows, cols, queries, keys, mask, m_q, m_k, scale, cap, lowest,
            CAUSAL: tl.constexpr, MASK: tl.constexpr, BY_ROW: tl.constexpr, SOFTCAP: tl.constexpr,
            PRECISION: tl.constexpr):
    """Scores of q (row, dim) and k (dim, key); -inf for keys that a row does not see. MASK: 0 none, 1 boolean, 2 added.
    BY_ROW: whether the mask differs from row to row."""
    s = tl.dot(q, k, input_precision=PRECISION) * scale
    if SOFTCAP:  # scale is divided by the cap, the cap is in units of log 2
        small = tl.exp2(tl.abs(s) * (-2.0) * LOG2E)
        s = tl.where(s < 0, -cap, cap) * ((1 - small) / (1 + small))
    seen = (cols < keys)[None, :]
    if CAUSAL:
        seen = seen & (cols[None, :] <= rows[:, None])
    if MASK != 0:
        if BY_ROW:
            there = (rows < queries)[:, None] & (cols < keys)[None, :]
            found = tl.load(mask + rows.to(tl.int64)[:, None] * m_q + cols[None, :] * m_k, mask=there, other=0)
        else:
            found = tl.load(mask + cols * m_k, mask=cols < keys, other=0)[None, :]
        if MASK == 1:
            seen = seen & (found != 0)
        else:
            added = found.to(tl.float32)
            s = s + added * LOG2E
            seen = seen & (added > lowest)
    return tl.where(seen, s, float("-inf"))


@triton.jit
def _sweep(q, rows, end, start_top, start_total, cut_row, key, value, instead, mask, cut_keys,
           queries, keys, k_k, v_k, i_k, m_q, m_k, scale, cap, lowest,
           DIM: tl.constexpr, VALUE_DIM: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, BY_ROW: tl.constexpr,
           SOFTCAP: tl.constexpr, CUT: tl.constexpr, INSTEAD: tl.constexpr, OUTPUT: tl.constexpr,
           ENTROPY: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
           DIM_TILE: tl.constexpr, VALUE_TILE: tl.constexpr):
    """All keys once. With the maximum `top` of what counts and e = exp(s - top): total = sum e, mixed = sum e v,
    moment = sum e (s - top). Of the keys that are cut the same: their own maximum and total where they leave the
    softmax (CUT 1), their part of the total where they stay in it (CUT 2)."""
    top, total = start_top, start_total
    moment, mixed = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, VALUE_TILE], tl.float32)
    cut_top, cut_total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    dims, value_dims = tl.arange(0, DIM_TILE), tl.arange(0, VALUE_TILE)
    for start in range(0, end, KEYS):
        cols = start + tl.arange(0, KEYS)
        k = tl.load(key + dims[:, None] + cols[None, :] * k_k, mask=(dims < DIM)[:, None] & (cols < keys)[None, :],
                    other=0)
        s = _scores(q, k, rows, cols, queries, keys, mask, m_q, m_k, scale, cap, lowest,
                    CAUSAL, MASK, BY_ROW, SOFTCAP, PRECISION)
        if CUT != 0:
            gone = (tl.load(cut_keys + cols, mask=cols < keys, other=0) != 0)[None, :] & cut_row[:, None]
        if CUT == 1:
            lost = tl.where(gone, s, float("-inf"))
            higher = tl.maximum(cut_top, tl.max(lost, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            cut_total = cut_total * tl.exp2(cut_top - base) + tl.sum(tl.exp2(lost - base[:, None]), 1)
            cut_top = higher
            s = tl.where(gone, float("-inf"), s)
        higher = tl.maximum(top, tl.max(s, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p, shrink = tl.exp2(s - base[:, None]), tl.exp2(top - base)
        if ENTROPY:
            moved = tl.where(total > 0, (top - base) * total, 0.0)
            moment = shrink * (moment + moved) + tl.sum(tl.where(p > 0, p * (s - base[:, None]), 0.0), 1)
        total = total * shrink + tl.sum(p, 1)
        kept = p
        if CUT == 2:
            kept = tl.where(gone, 0.0, p)
            cut_total = cut_total * shrink + tl.sum(p - kept, 1)
        if OUTPUT:
            mixed = mixed * shrink[:, None]
            there = (cols < keys)[:, None] & (value_dims < VALUE_DIM)[None, :]
            v = tl.load(value + cols[:, None] * v_k + value_dims[None, :], mask=there, other=0)
            mixed = tl.dot(kept.to(v.dtype), v, mixed, input_precision=PRECISION)
            if INSTEAD:
                other = tl.load(instead + cols[:, None] * i_k + value_dims[None, :], mask=there, other=0)
                mixed = tl.dot((p - kept).to(other.dtype), other, mixed, input_precision=PRECISION)
        top = higher
    return top, total, moment, mixed, cut_top, cut_total


@triton.jit
def _share(log_kept, cut_top, cut_total):
    """What the cut keys had of a row, from both sums, so that neither loses digits beside the other."""
    some = cut_total > 0
    log_cut = tl.where(some, cut_top + tl.log2(tl.where(some, cut_total, 1.0)), float("-inf"))
    return tl.where(some, 1 / (1 + tl.exp2(log_kept - log_cut)), 0.0)


@triton.jit
def row_tiles(query, key, value, instead, mask, cut_keys, cut_rows, sink,
              output, log_sums, log_sums_cut, entropies, removed,
              q_b, q_h, q_q, k_b, k_h, k_k, v_b, v_h, v_k, i_b, i_h, i_k, m_b, m_h, m_q, m_k,
              heads, group, queries, keys, scale, cap, lowest,
              DIM: tl.constexpr, VALUE_DIM: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
              BY_ROW: tl.constexpr, SOFTCAP: tl.constexpr, SINK: tl.constexpr, CUT: tl.constexpr,
              CUT_ROWS: tl.constexpr, INSTEAD: tl.constexpr, OUTPUT: tl.constexpr, ENTROPY: tl.constexpr,
              PRECISION: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_TILE: tl.constexpr,
              VALUE_TILE: tl.constexpr):
    """Rows of one head. `log_sums` (batch, head, query): +inf for rows that see nothing, so that exp(s - it) is 0.
    `log_sums_cut`: the same for the cut keys, +inf in rows that lose them."""
    tiles = tl.cdiv(queries, ROWS)
    tile, lane = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    b, h = lane // heads, lane % heads
    rows, dims = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM_TILE)
    real = rows < queries
    q = tl.load(query + b * q_b + h * q_h + rows[:, None] * q_q + dims[None, :],
                mask=real[:, None] & (dims < DIM)[None, :], other=0)
    key, value = key + b * k_b + (h // group) * k_h, value + b * v_b + (h // group) * v_h
    start_top, start_total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    if SINK:  # a column without a key
        start_top, start_total = start_total + tl.load(sink + h).to(tl.float32) * LOG2E, start_total + 1.0
    if MASK != 0:
        mask = mask + b * m_b + h * m_h
    if INSTEAD:
        instead = instead + b * i_b + (h // group) * i_h
    cut_row = real
    if CUT != 0:
        cut_keys = cut_keys + lane * keys
    if CUT_ROWS:
        cut_row = tl.load(cut_rows + b * queries + rows, mask=real, other=0) != 0
    end = tl.minimum(keys, (tile + 1) * ROWS) if CAUSAL else keys
    top, total, moment, mixed, cut_top, cut_total = _sweep(
        q, rows, end, start_top, start_total, cut_row, key, value, instead, mask, cut_keys,
        queries, keys, k_k, v_k, i_k, m_q, m_k, scale, cap, lowest, DIM, VALUE_DIM, CAUSAL, MASK, BY_ROW,
        SOFTCAP, CUT, INSTEAD, OUTPUT, ENTROPY, PRECISION, ROWS, KEYS, DIM_TILE, VALUE_TILE)
    if CUT == 1:
        spared = (total == 0) & (cut_total > 0)  # would lose all that they see: they keep it
        if tl.max(spared.to(tl.int32), 0) > 0:
            cut_row = cut_row & (spared == 0)
            top, total, moment, mixed, cut_top, cut_total = _sweep(
                q, rows, end, start_top, start_total, cut_row, key, value, instead, mask, cut_keys,
                queries, keys, k_k, v_k, i_k, m_q, m_k, scale, cap, lowest, DIM, VALUE_DIM, CAUSAL, MASK, BY_ROW,
                SOFTCAP, CUT, INSTEAD, OUTPUT, ENTROPY, PRECISION, ROWS, KEYS, DIM_TILE, VALUE_TILE)
    some, safe = total > 0, tl.where(total > 0, total, 1.0)
    place, log_sum = lane * queries + rows, tl.where(some, top + tl.log2(safe), float("inf"))
    tl.store(log_sums + place, log_sum / LOG2E, mask=real)
    if CUT == 1:
        tl.store(log_sums_cut + place, tl.where(cut_row, float("inf"), log_sum / LOG2E), mask=real)
        tl.store(removed + place, _share(tl.where(some, log_sum, float("-inf")), cut_top, cut_total), mask=real)
    if CUT == 2:
        tl.store(removed + place, cut_total / safe, mask=real)
    if ENTROPY:  # log sum - mean score, both over `top`
        tl.store(entropies + place, (tl.log2(safe) - moment / safe) / LOG2E, mask=real)
    if OUTPUT:
        value_dims = tl.arange(0, VALUE_TILE)
        at = output + ((b * queries + rows)[:, None] * heads + h) * VALUE_DIM + value_dims[None, :]
        tl.store(at, (mixed / safe[:, None]).to(output.dtype.element_ty),
                 mask=real[:, None] & (value_dims < VALUE_DIM)[None, :])


@triton.jit
def column_tiles(query, key, mask, cut_keys, log_sums, log_sums_cut, weights, order, before, sums,
                 q_b, q_h, q_q, k_b, k_h, k_k, m_b, m_h, m_q, m_k, l_b, l_h,
                 heads, group, groups, queries, keys, scale, cap, lowest,
                 DIM: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, BY_ROW: tl.constexpr,
                 SOFTCAP: tl.constexpr, CUT: tl.constexpr, LISTED: tl.constexpr, PRECISION: tl.constexpr,
                 ROWS: tl.constexpr, KEYS: tl.constexpr, DIM_TILE: tl.constexpr):
    """Sums (batch, head, group, key) over query rows of weight times probability, of one head and group.

    weights (batch, group, query). LISTED: only rows with a weight are visited, in the order `order` (batch, group,
    query); `before` (batch, group, query + 1) counts those before a query. A weight goes into the exponent.
    """
    tiles = tl.cdiv(keys, KEYS)
    tile, rest = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    g, lane = rest % groups, (rest // groups).to(tl.int64)
    b, h = lane // heads, lane % heads
    listed = b * groups + g
    cols, dims = tile * KEYS + tl.arange(0, KEYS), tl.arange(0, DIM_TILE)
    k = tl.load(key + b * k_b + (h // group) * k_h + dims[:, None] + cols[None, :] * k_k,
                mask=(dims < DIM)[:, None] & (cols < keys)[None, :], other=0)
    query, log_sums, weights = query + b * q_b + h * q_h, log_sums + b * l_b + h * l_h, weights + listed * queries
    if MASK != 0:
        mask = mask + b * m_b + h * m_h
    if CUT:
        gone = (tl.load(cut_keys + lane * keys + cols, mask=cols < keys, other=0) != 0)[None, :]
        log_sums_cut = log_sums_cut + b * l_b + h * l_h
    first, count = 0, queries
    if CAUSAL:  # rows before the tile see none of its keys
        first = tl.minimum(tile * KEYS, queries)
    if LISTED:
        order, before = order + listed * queries, before + listed * (queries + 1)
        count = tl.load(before + queries)
        first = tl.load(before + first)
    total = tl.zeros([ROWS, KEYS], tl.float32)
    for start in range(first // ROWS * ROWS, count, ROWS):
        rows = start + tl.arange(0, ROWS)
        if LISTED:
            rows = tl.load(order + rows, mask=rows < count, other=queries)
        real = rows < queries
        q = tl.load(query + rows[:, None] * q_q + dims[None, :], mask=real[:, None] & (dims < DIM)[None, :], other=0)
        s = _scores(q, k, rows, cols, queries, keys, mask, m_q, m_k, scale, cap, lowest,
                    CAUSAL, MASK, BY_ROW, SOFTCAP, PRECISION)
        weight = tl.log2(tl.load(weights + rows, mask=real, other=0))
        # The kernels of SDPA give -inf or NaN for rows that see nothing.
        log_sum = tl.load(log_sums + rows, mask=real, other=float("inf")) * LOG2E
        base = (tl.where(log_sum > float("-inf"), log_sum, float("inf")) - weight)[:, None]
        if CUT:
            log_cut = tl.load(log_sums_cut + rows, mask=real, other=float("inf")) * LOG2E - weight
            base = tl.where(gone, log_cut[:, None], base)
        total += tl.exp2(s - base)
    tl.store(sums + (lane * groups + g) * keys + cols, tl.sum(total, 0), mask=cols < keys)
