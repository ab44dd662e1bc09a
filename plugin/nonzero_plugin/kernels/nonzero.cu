// NonZero on the GPU: the positions of the non-zero items of a tensor, in row-major order.
//
// Contract
//   in       d_in, num_items items of WORD_BYTES bytes, rank 1..8, aligned to its item. An item is
//            non-zero when (word & mask) != 0; the mask leaves out the sign of the formats that
//            have a -0, so no floating-point arithmetic (and no flush-to-zero) decides anything.
//   out      d_indices, K = min(non-zeros, max_rows) rows, the first K in row-major order:
//            rank_last: [K, rank], else [rank, K]. *d_count = K, also when it is 0.
//            *d_required = non-zeros when K is less than that; otherwise it is left alone.
//            Nothing is written past K rows; nothing is read outside the num_items items.
//   aliasing d_in, d_indices, d_count and the workspace do not overlap.
//   order    does not depend on scheduling: equal inputs give equal bytes.
//   limits   WIDE=0: num_items + padding below 2^31; WIDE=1: below 2^62.
//
// Paths (the host picks one, launch.py)
//   nonzero_small          one launch, no workspace: each block recounts the tiles before its own.
//   nonzero_select_*       [K, rank] in one pass: tiles in the order of an atomic ticket, each tile
//                          finds the rows before it by decoupled look-back (Merrill & Garland 2016).
//                          Workspace, zeroed on the same stream before the launch:
//                            u64 ticket | u64 status[num_tiles]
//                          A block waits only for tiles whose tickets were drawn before its own, so
//                          by blocks that already run: no assumption about which blocks are resident.
//                          Two launches in flight never share a workspace.
//   nonzero_flag, _write   [rank, K], where every row needs K first: one pass over the input leaves
//                          a bit an item, a second reads the bits and writes. No block waits.
//                          Workspace, not zeroed:
//                            u32 bits[spans * 32] | u16 span_count[spans] |
//                            u32 segment_count[MAX_SEGMENTS] | u32 ticket
//
// Words: a span is 1024 consecutive items, one 32-bit word of flags for each lane of a warp. Item
// positions count from the 16-byte boundary at or below d_in ("virtual" positions v), so that whole
// vectors can be loaded; the item at v is item v - head of the tensor.
//
// Defines: WORD_BYTES (1, 2, 4, 8), INDEX_BYTES (4, 8), WIDE (0, 1), and launch.py's constants
// BLOCK_THREADS, SPAN_ITEMS, ALIGNMENT, MAX_SEGMENTS, LARGE_TILE_SPANS (a warp's), and
// LARGE_TILE_BLOCKS, FLAG_BLOCKS and WRITE_BLOCKS (a processor's).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if WORD_BYTES == 1
typedef u8 word_t;
#elif WORD_BYTES == 2
typedef u16 word_t;
#elif WORD_BYTES == 4
typedef u32 word_t;
#else
typedef u64 word_t;
#endif

#if INDEX_BYTES == 4
typedef int index_t;
typedef int2 pair_t;
#else
typedef long long index_t;
typedef longlong2 pair_t;
#endif

// Item positions and row numbers.
#if WIDE
typedef u64 flat_t;
#else
typedef u32 flat_t;
#endif

#define ALL_LANES 0xffffffffu
#define WARPS (BLOCK_THREADS / 32)
#define FLAG_SPANS (WORD_BYTES < 4 ? 4 / WORD_BYTES : 1)  // loaded together by a warp
#define GROUP_SPANS 4                                     // written together by a warp, if sparse
#define DENSE(nonzeros, items) ((nonzeros) > (items) / 8)  // rows are written span by span
#define LINE_INDICES (128 / INDEX_BYTES)                  // of one cache line

struct Params {
    const void *d_in;
    index_t *d_indices;
    long long *d_count;
    void *d_workspace;
    u64 *d_required;  // null: nobody asks
    u64 num_items;
    u64 max_rows;
    u64 mask;  // of one 32-bit word of 1-, 2- or 4-byte items, or of one 8-byte item
    u32 rank;
    u32 rank_last;
    u32 num_tiles;
    u32 spans;  // with a word of flags, a multiple of 32
    u32 num_segments;
    u32 segment_spans;
    u32 segment_multiplier, segment_shift;  // span / segment_spans
    u64 multiplier[8];  // floor(flat / stride[d]) by multiply and shift, see divide()
    u64 extent[8];      // of dimension d; 0 for d = 0, whose coordinate is never reduced
    u32 shift[8];
};

// ---- input: one 32-bit word of flags a lane and span ---------------------------------------------

struct Input {
    const word_t *base;  // aligned to ALIGNMENT
    flat_t begin, end;   // virtual positions of the first item and past the last
};

__device__ __forceinline__ Input open_input(const Params &p)
{
    Input in;
    const u64 address = (u64)p.d_in;
    const u32 head = WORD_BYTES < 4 ? (u32)(address & (ALIGNMENT - 1)) / WORD_BYTES : 0;
    in.base = (const word_t *)p.d_in - head;
    in.begin = head;
    in.end = (flat_t)(head + p.num_items);
    return in;
}

// The input is read once and is not written meanwhile: keep it out of L1. Volatile keeps the order of
// loads and votes, so that a batch of loads is under way before the first vote waits.
__device__ __forceinline__ uint4 load_vector(const void *address)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

__device__ __forceinline__ u32 load_item(const u32 *address)
{
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(address));
    return v;
}

__device__ __forceinline__ u64 load_item(const u64 *address)
{
    u64 v;
    asm volatile("ld.global.nc.L1::no_allocate.u64 %0, [%1];" : "=l"(v) : "l"(address));
    return v;
}

// a . b + c over the four bytes of each.
__device__ __forceinline__ u32 dot_bytes(u32 a, u32 b, u32 c)
{
    u32 d;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Sets the top bit of each part of x that is not zero, and clears every other bit.
__device__ __forceinline__ u32 nonzero_parts(u32 x, u32 top_bits)
{
    return (((x & ~top_bits) + ~top_bits) | x) & top_bits;
}

#if WORD_BYTES < 4
// Flags of the 16 / WORD_BYTES items of one vector, first item in bit 0. The dot products collect
// the top bits of the bytes (each worth 128) with the weights 1, 2, 4, ... 128.
__device__ __forceinline__ u32 vector_flags(uint4 v, u32 mask)
{
#if WORD_BYTES == 1
    const u32 top = 0x80808080u;
    const u32 low = dot_bytes(nonzero_parts(v.x & mask, top), 0x08040201u,
                              dot_bytes(nonzero_parts(v.y & mask, top), 0x80402010u, 0));
    const u32 high = dot_bytes(nonzero_parts(v.z & mask, top), 0x08040201u,
                               dot_bytes(nonzero_parts(v.w & mask, top), 0x80402010u, 0));
    return (low >> 7) | (high << 1);
#else
    const u32 top = 0x80008000u;
    u32 sum = dot_bytes(nonzero_parts(v.x & mask, top), 0x02000100u, 0);
    sum = dot_bytes(nonzero_parts(v.y & mask, top), 0x08000400u, sum);
    sum = dot_bytes(nonzero_parts(v.z & mask, top), 0x20001000u, sum);
    sum = dot_bytes(nonzero_parts(v.w & mask, top), 0x80004000u, sum);
    return sum >> 7;
#endif
}
#endif

// A span that lies inside the input. Neighbouring lanes load neighbouring memory; afterwards lane l
// holds the flags of items 32 l .. 32 l + 31. BYTES: how much a lane loads at a time, where items are wide.
template <u32 BYTES>
__device__ __forceinline__ u32 load_span(const word_t *span, u64 mask, u32 lane)
{
#if WORD_BYTES == 1
    const uint4 *vectors = (const uint4 *)span + lane;
    const u32 both = vector_flags(load_vector(vectors), (u32)mask) |
                     vector_flags(load_vector(vectors + 32), (u32)mask) << 16;
    const u32 even = __shfl_sync(ALL_LANES, both, (2 * lane) & 31);
    const u32 odd = __shfl_sync(ALL_LANES, both, (2 * lane + 1) & 31);
    return __byte_perm(even, odd, lane < 16 ? 0x5410 : 0x7632);
#elif WORD_BYTES == 2
    const uint4 *vectors = (const uint4 *)span + lane;
    u32 four = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        four |= vector_flags(load_vector(vectors + 32 * i), (u32)mask) << (8 * i);
    const u32 selector = (lane >> 3) * 0x11 + 0x40;  // byte (lane / 8) of either operand
    const u32 low = __byte_perm(__shfl_sync(ALL_LANES, four, (4 * lane) & 31),
                                __shfl_sync(ALL_LANES, four, (4 * lane + 1) & 31), selector);
    const u32 high = __byte_perm(__shfl_sync(ALL_LANES, four, (4 * lane + 2) & 31),
                                 __shfl_sync(ALL_LANES, four, (4 * lane + 3) & 31), selector);
    return __byte_perm(low, high, 0x5410);
#else
    // Loads in batches: left to itself the compiler waits for one or two at a time in some kernels.
    constexpr u32 BATCH = BYTES / WORD_BYTES;
    u32 flags = 0;
#pragma unroll
    for (u32 first = 0; first < 32; first += BATCH) {
        word_t items[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) items[i] = load_item(span + 32 * (first + i) + lane);
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            const u32 vote = __ballot_sync(ALL_LANES, (items[i] & (word_t)mask) != 0);
            flags = lane == first + i ? vote : flags;
        }
    }
    return flags;
#endif
}

// A span that reaches over an end of the input: item by item, nothing read outside.
__device__ __noinline__ u32 load_edge_span(const Input in, flat_t v, u64 mask, u32 lane)
{
    u32 flags = 0;
#pragma unroll 8
    for (u32 i = 0; i < 32; i++) {
        const flat_t at = v + 32 * i + lane;
        bool set = false;
        if (at >= in.begin && at < in.end) set = (in.base[at] & (word_t)mask) != 0;
        const u32 vote = __ballot_sync(ALL_LANES, set);
        flags = lane == i ? vote : flags;
    }
    return flags;
}

template <int SPANS, u32 BYTES = 64>
__device__ __forceinline__ void load_spans(u32 (&flags)[SPANS], const Input &in, flat_t v, u64 mask,
                                           u32 lane)
{
    if (v >= in.begin && v + SPANS * SPAN_ITEMS <= in.end) {
#pragma unroll
        for (int s = 0; s < SPANS; s++) flags[s] = load_span<BYTES>(in.base + v + s * SPAN_ITEMS, mask, lane);
    } else {
#pragma unroll
        for (int s = 0; s < SPANS; s++) {
            const flat_t at = v + s * SPAN_ITEMS;
            flags[s] = at >= in.end ? 0 : load_edge_span(in, at, mask, lane);
        }
    }
}

// ---- sums ----------------------------------------------------------------------------------------

__device__ __forceinline__ u32 warp_sum(u32 x)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL_LANES, x);
#else
#pragma unroll
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
#endif
}

__device__ __forceinline__ u64 warp_sum(u64 x)
{
#pragma unroll
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
    return x;
}

template <typename T>
__device__ __forceinline__ T warp_inclusive_sum(T x, u32 lane)
{
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const T below = __shfl_up_sync(ALL_LANES, x, d);
        if (lane >= d) x += below;
    }
    return x;
}

// ---- output --------------------------------------------------------------------------------------

// floor(x / divisor) for any divisor >= 1 and x below 2^31 (WIDE: 2^63), launch.magic() makes the
// multiplier and the shift. One bit of x less than the word has is what makes one multiply enough.
__device__ __forceinline__ flat_t divide(flat_t x, flat_t multiplier, u32 shift)
{
#if WIDE
    return __umul64hi(x << 1, multiplier) >> shift;
#else
    return __umulhi(x << 1, multiplier) >> shift;
#endif
}

// What one lane writes. [K, rank]: a warp writes whole rows as one run of elements, and each lane
// keeps to one column. The coordinate is flat / stride[column] mod extent[column], and the quotient
// by the product of both is flat / stride[column - 1].
struct Writer {
    u32 row, rows_per_step;  // rank_last: first row (none: beyond any) and rows in a step of the warp
    u32 skew_mask;           // rank_last: rows past the start of a cache line, where rows divide one
    flat_t inner, outer, extent;
    u32 inner_shift, outer_shift;
};

__device__ __forceinline__ Writer make_writer(const Params &p, u32 lane)
{
    Writer w;
    w.rows_per_step = 32 / p.rank;
    const u32 row = lane / p.rank, column = lane - row * p.rank;
    const u32 before = column ? column - 1 : 0;
    w.row = row < w.rows_per_step ? row : 2 * SPAN_ITEMS;
    w.skew_mask = p.rank & (p.rank - 1) ? 0 : LINE_INDICES / p.rank - 1;
    w.inner = (flat_t)p.multiplier[column];
    w.inner_shift = p.shift[column];
    w.outer = (flat_t)p.multiplier[before];
    w.outer_shift = p.shift[before];
    w.extent = (flat_t)p.extent[column];
    return w;
}

// Calls emit(r, stage[r]) for r in 0 .. total - 1. The warp's accesses start skew rows before a
// multiple of 32, so that with a fitting skew every store but the outer two fills whole cache lines.
template <typename Emit>
__device__ __forceinline__ void for_rows(int total, int skew, const u16 *stage, int lane, Emit emit)
{
    if (lane >= skew && lane - skew < total) emit(lane - skew, stage[lane - skew]);
    int r = 32 - skew + lane;
    for (; r - lane + 128 <= total; r += 128) {
        u32 offset[4];
#pragma unroll
        for (int i = 0; i < 4; i++) offset[i] = stage[r + 32 * i];
#pragma unroll
        for (int i = 0; i < 4; i++) emit(r + 32 * i, offset[i]);
    }
    if (r - lane >= total) return;
    u32 offset[4];  // the last rows, all loads before the first use again
#pragma unroll
    for (int i = 0; i < 4; i++) offset[i] = r + 32 * i < total ? stage[r + 32 * i] : 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (r + 32 * i < total) emit(r + 32 * i, offset[i]);
}

// One row of [rank, K] for staged items: the coordinate along one dimension. The first dimension
// needs no remainder (OUTER), the last no quotient (INNER).
template <bool INNER, bool OUTER>
__device__ __forceinline__ void write_dimension(const Params &p, u32 d, flat_t flat, flat_t row, u32 total,
                                                flat_t num_rows, const u16 *stage, u32 lane)
{
    const u64 start = (u64)d * num_rows + row;
    index_t *const out = p.d_indices + start;
    const flat_t inner = (flat_t)p.multiplier[d], outer = OUTER ? (flat_t)p.multiplier[d - 1] : 0;
    const u32 inner_shift = p.shift[d], outer_shift = OUTER ? p.shift[d - 1] : 0;
    const flat_t extent = (flat_t)p.extent[d];
    for_rows(total, (u32)start & (LINE_INDICES - 1), stage, lane, [&](int r, u32 offset) {
        const flat_t item = flat + offset;
        flat_t coordinate = INNER ? divide(item, inner, inner_shift) : item;
        if (OUTER) coordinate -= divide(item, outer, outer_shift) * extent;
        out[r] = (index_t)coordinate;
    });
}

// Writes rows row .. row + total - 1 for the staged items, which are offsets from item flat.
__device__ __forceinline__ void write_rows(const Params &p, const Writer &w, flat_t flat, flat_t row, u32 total,
                                           flat_t num_rows, const u16 *stage, u32 lane)
{
    if (!p.rank_last) {
        write_dimension<true, false>(p, 0, flat, row, total, num_rows, stage, lane);
#pragma unroll 1
        for (u32 d = 1; d < p.rank - 1; d++)
            write_dimension<true, true>(p, d, flat, row, total, num_rows, stage, lane);
        write_dimension<false, true>(p, p.rank - 1, flat, row, total, num_rows, stage, lane);
    } else if (p.rank == 2 && (u64)p.d_indices % sizeof(pair_t) == 0) {
        pair_t *const out = (pair_t *)p.d_indices + row;
        const flat_t outer = (flat_t)p.multiplier[0], extent = (flat_t)p.extent[1];
        const u32 shift = p.shift[0];
        for_rows(total, (u32)row & w.skew_mask, stage, lane, [&](int r, u32 offset) {
            const flat_t item = flat + offset;
            const flat_t quotient = divide(item, outer, shift);
            pair_t pair;
            pair.x = (index_t)quotient;
            pair.y = (index_t)(item - quotient * extent);
            out[r] = pair;
        });
    } else {
        const int skew = (int)((u32)row & w.skew_mask);
        index_t *out = p.d_indices + (u64)row * p.rank - skew * (int)p.rank + lane;
        const u32 step = w.rows_per_step * p.rank;
#pragma unroll 2
        for (int r = (int)w.row - skew; r < (int)total; r += w.rows_per_step, out += step) {
            if (r < 0) continue;
            const flat_t item = flat + stage[r];
            *out = (index_t)(divide(item, w.inner, w.inner_shift) -
                             divide(item, w.outer, w.outer_shift) * w.extent);
        }
    }
}

// A store for the lanes with any flags left, by predicate: a branch would cost more than the store.
__device__ __forceinline__ void store_if(u32 flags, u32 shared_address, u32 value)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.u16 [%1], %2; }"
                 :
                 : "r"(flags), "r"(shared_address), "h"((u16)value)
                 : "memory");
}

// Puts the offsets of the set flags of two words on the stage, those of the first from slot on and those
// of the second after them; returns the slot after both. Two chains of bits at once, as each step of one
// waits for the step before.
__device__ __forceinline__ u32 stage_pair(u32 slot, u32 first, u32 first_offset, u32 second, u32 second_offset)
{
    u32 next = slot + 2 * __popc(first);
    const u32 end = next + 2 * __popc(second);
    while (first | second) {
        store_if(first, slot, first_offset + __ffs(first) - 1);
        store_if(second, next, second_offset + __ffs(second) - 1);
        first &= first - 1;
        second &= second - 1;
        slot += 2;
        next += 2;
    }
    return end;
}

// The same for a span without a zero, whose lanes would all meet in two banks.
__device__ __forceinline__ void stage_all(u16 *stage, u32 lane)
{
#pragma unroll
    for (u32 i = lane; i < SPAN_ITEMS / 2; i += 32) ((u32 *)stage)[i] = i * 0x20002 + 0x10000;
}

__device__ __forceinline__ u32 limit_rows(u32 total, flat_t row, flat_t num_rows)
{
    return row >= num_rows ? 0 : (u32)min((flat_t)total, num_rows - row);
}

// Writes the rows of one span: flags is the lane's word, flat the item of
// the span's first position, row the output row of its first non-zero item, num_rows K (rank_last: K
// or anything between K and max_rows).
__device__ __forceinline__ void write_span(const Params &p, const Writer &w, u32 flags, flat_t flat, flat_t row,
                                          flat_t num_rows, u16 *stage, u32 lane)
{
    const u32 count = __popc(flags);
    const u32 inclusive = warp_inclusive_sum(count, lane);
    const u32 total = __shfl_sync(ALL_LANES, inclusive, 31);
    const u32 rows = limit_rows(total, row, num_rows);
    if (rows == 0) return;
    const u32 slot = (u32)__cvta_generic_to_shared(stage + (inclusive - count));
    if (total == SPAN_ITEMS)
        stage_all(stage, lane);
    else
        stage_pair(slot, flags & 0xffff, lane * 32, flags & 0xffff0000u, lane * 32);
    __syncwarp();  // the stage is filled before other lanes read it
    write_rows(p, w, flat, row, rows, num_rows, stage, lane);
    __syncwarp();  // the stage is read before it is filled again
}

// The same for GROUP_SPANS spans with at most SPAN_ITEMS non-zero items: flags are four words in order.
__device__ __forceinline__ void write_group(const Params &p, const Writer &w, uint4 flags, flat_t flat, flat_t row,
                                            flat_t num_rows, u16 *stage, u32 lane)
{
    const u32 count = __popc(flags.x) + __popc(flags.y) + __popc(flags.z) + __popc(flags.w);
    const u32 inclusive = warp_inclusive_sum(count, lane);
    const u32 rows = limit_rows(__shfl_sync(ALL_LANES, inclusive, 31), row, num_rows);
    if (rows == 0) return;
    u32 slot = (u32)__cvta_generic_to_shared(stage + (inclusive - count));
    slot = stage_pair(slot, flags.x, lane * 128, flags.y, lane * 128 + 32);
    stage_pair(slot, flags.z, lane * 128 + 64, flags.w, lane * 128 + 96);
    __syncwarp();  // the stage is filled before other lanes read it
    write_rows(p, w, flat, row, rows, num_rows, stage, lane);
    __syncwarp();  // the stage is read before it is filled again
}

__device__ __forceinline__ flat_t count_rows(const Params &p, u64 nonzeros)
{
    return (flat_t)(nonzeros < p.max_rows ? nonzeros : p.max_rows);
}

__device__ __forceinline__ void write_count(const Params &p, u64 nonzeros)
{
    *p.d_count = (long long)count_rows(p, nonzeros);
    if (p.d_required && nonzeros > p.max_rows) *(volatile u64 *)p.d_required = nonzeros;
}

// ---- few items: every block counts what comes before its tile ------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
nonzero_small(const __grid_constant__ Params p)
{
    __shared__ __align__(16) u16 stage[WARPS][SPAN_ITEMS];
    __shared__ u32 warp_before[WARPS], warp_total[WARPS], warp_count[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Input in = open_input(p);
    const Writer w = make_writer(p, lane);

    u32 mine = 0, before = 0, total = 0;
    // Without a row length to know, the tiles after this one do not matter.
    const u32 tiles = p.rank_last ? blockIdx.x + 1 : p.num_tiles;
    for (u32 tile = 0; tile < tiles; tile++) {
        u32 flags[1];
        load_spans<1, 128>(flags, in, (flat_t)(tile * WARPS + warp) * SPAN_ITEMS, p.mask, lane);
        if (tile < blockIdx.x) before += __popc(flags[0]);
        if (tile == blockIdx.x) mine = flags[0];
        total += __popc(flags[0]);
    }
    before = warp_sum(before);
    total = warp_sum(total);
    const u32 count = warp_sum((u32)__popc(mine));
    if (lane == 0) {
        warp_before[warp] = before;
        warp_total[warp] = total;
        warp_count[warp] = count;
    }
    __syncthreads();  // every warp's sums are in shared memory

    flat_t row = 0, nonzeros = 0;
    for (u32 i = 0; i < WARPS; i++) {
        row += warp_before[i];
        nonzeros += warp_total[i];
        if (i < warp) row += warp_count[i];
    }
    if (blockIdx.x == p.num_tiles - 1 && threadIdx.x == 0) write_count(p, nonzeros);
    const flat_t v = (flat_t)(blockIdx.x * WARPS + warp) * SPAN_ITEMS;
    write_span(p, w, mine, v - in.begin, row, count_rows(p, nonzeros), stage[warp], lane);
}

// ---- [K, rank] in one pass: decoupled look-back --------------------------------------------------

// A tile's status: nothing yet, the tile's own count, or the count up to its end.
#define STATUS_PARTIAL (1ull << 62)
#define STATUS_INCLUSIVE (2ull << 62)
#define STATUS_VALUE (STATUS_PARTIAL - 1)

// Flag and value share one 64-bit word and guard no other memory: relaxed accesses are enough.
__device__ __forceinline__ u64 load_status(const u64 *status)
{
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(status) : "memory");
    return v;
}

__device__ __forceinline__ void store_status(u64 *status, u64 v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(status), "l"(v) : "memory");
}

// The non-zeros before tile (> 0), by one whole warp: lane l looks at the l-th tile back.
__device__ __forceinline__ u64 look_back(const u64 *status, u32 tile, u32 lane)
{
    u64 before = 0;
    for (long long at = (long long)tile - 1 - lane;; at -= 32) {
        u64 seen;
        u32 inclusive, needed;
        do {
            seen = at >= 0 ? load_status(status + at) : STATUS_INCLUSIVE;
            inclusive = __ballot_sync(ALL_LANES, seen >= STATUS_INCLUSIVE);
            // Tiles beyond the nearest inclusive one do not matter.
            needed = inclusive ? (inclusive & -inclusive) - 1 : ALL_LANES;
        } while (__ballot_sync(ALL_LANES, seen == 0) & needed);
        const bool counts = (needed >> lane) & 1;
        before += warp_sum(counts ? (u32)seen : 0u);  // partial: at most a tile
        if (inclusive)
            return before + (__shfl_sync(ALL_LANES, seen, __ffs(inclusive) - 1) & STATUS_VALUE);
    }
}

// Draws the block's tile.
__device__ __forceinline__ u32 draw_tile(const Params &p)
{
    __shared__ u32 ticket;
    if (threadIdx.x == 0) ticket = (u32)atomicAdd((u64 *)p.d_workspace, 1ull);
    __syncthreads();  // the ticket is drawn
    return ticket;
}

// The rows before a tile of tile_count non-zeros, by one whole warp.
__device__ __forceinline__ u64 place_tile(const Params &p, u32 tile, u32 tile_count, u32 lane)
{
    u64 *const status = (u64 *)p.d_workspace + 1;
    u64 before = 0;
    if (tile > 0) {
        if (lane == 0) store_status(status + tile, STATUS_PARTIAL | tile_count);
        before = look_back(status, tile, lane);
    }
    if (lane == 0) {
        store_status(status + tile, STATUS_INCLUSIVE | (before + tile_count));
        if (tile == p.num_tiles - 1) write_count(p, before + tile_count);
    }
    return before;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
nonzero_select_small(const __grid_constant__ Params p)
{
    __shared__ __align__(16) u16 stage[WARPS][SPAN_ITEMS];
    __shared__ u32 warp_count[WARPS];
    __shared__ flat_t warp_row[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u32 tile = draw_tile(p);
    const Input in = open_input(p);
    const flat_t v = ((flat_t)tile * WARPS + warp) * SPAN_ITEMS;
    u32 flags[1];
    load_spans<1>(flags, in, v, p.mask, lane);
    const u32 count = warp_sum((u32)__popc(flags[0]));
    if (lane == 0) warp_count[warp] = count;
    __syncthreads();  // every warp's count is in shared memory
    if (warp == 0) {
        const u32 own = lane < WARPS ? warp_count[lane] : 0;
        const u32 inclusive = warp_inclusive_sum(own, lane);
        const flat_t before = (flat_t)place_tile(p, tile, __shfl_sync(ALL_LANES, inclusive, 31), lane);
        if (lane < WARPS) warp_row[lane] = before + inclusive - own;
    }
    __syncthreads();  // the first row of every warp is in shared memory
    const Writer w = make_writer(p, lane);
    write_span(p, w, flags[0], v - in.begin, warp_row[warp], p.max_rows, stage[warp], lane);
}

// The warps load one step of spans after the other, then take turns in writing them, so that the block
// writes one run of rows from its start to its end: DRAM pages like that.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, LARGE_TILE_BLOCKS)
nonzero_select_large(const __grid_constant__ Params p)
{
    constexpr u32 TILE_SPANS = LARGE_TILE_SPANS * WARPS, GROUPS = TILE_SPANS / GROUP_SPANS;
    __shared__ __align__(16) u16 stage[WARPS][SPAN_ITEMS];
    __shared__ __align__(16) u32 bits[TILE_SPANS * 32];
    __shared__ __align__(16) u32 span_row[TILE_SPANS];  // non-zeros of a span, then those before it
    __shared__ flat_t tile_row;
    __shared__ u32 tile_count;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const u32 tile = draw_tile(p);
    const Input in = open_input(p);
    const flat_t v = (flat_t)tile * (TILE_SPANS * SPAN_ITEMS);
#pragma unroll 1
    for (u32 first = warp * FLAG_SPANS; first < TILE_SPANS; first += WARPS * FLAG_SPANS) {
        u32 flags[FLAG_SPANS];
        load_spans<FLAG_SPANS>(flags, in, v + first * SPAN_ITEMS, p.mask, lane);
#pragma unroll
        for (int s = 0; s < FLAG_SPANS; s++) {
            bits[(first + s) * 32 + lane] = flags[s];
            const u32 count = warp_sum((u32)__popc(flags[s]));
            if (lane == s) span_row[first + s] = count;
        }
    }
    __syncthreads();  // every span's flags and count are in shared memory

    if (warp == 0) {
        uint4 own = {0, 0, 0, 0};
        if (lane < GROUPS) own = ((const uint4 *)span_row)[lane];
        const u32 group = own.x + own.y + own.z + own.w;
        const u32 inclusive = warp_inclusive_sum(group, lane);
        const u32 total = __shfl_sync(ALL_LANES, inclusive, 31);
        own.w = inclusive - own.w;
        own.z = own.w - own.z;
        own.y = own.z - own.y;
        own.x = own.y - own.x;
        if (lane < GROUPS) ((uint4 *)span_row)[lane] = own;
        const flat_t before = (flat_t)place_tile(p, tile, total, lane);
        if (lane == 0) {
            tile_row = before;
            tile_count = total;
        }
    }
    __syncthreads();  // the first rows of the tile and of its spans are in shared memory

    if (tile_count == 0) return;
    const Writer w = make_writer(p, lane);
    const flat_t row = tile_row, flat = v - in.begin;
    if (DENSE(tile_count, TILE_SPANS * SPAN_ITEMS)) {
        for (u32 s = warp; s < TILE_SPANS; s += WARPS)
            write_span(p, w, bits[s * 32 + lane], flat + s * SPAN_ITEMS, row + span_row[s], p.max_rows, stage[warp],
                       lane);
        return;
    }
    for (u32 g = warp; g < GROUPS; g += WARPS) {
        const u32 s = g * GROUP_SPANS;
        const u32 count = (g + 1 < GROUPS ? span_row[s + GROUP_SPANS] : tile_count) - span_row[s];
        if (count == 0) continue;
        if (count <= SPAN_ITEMS) {
            write_group(p, w, ((const uint4 *)(bits + s * 32))[lane], flat + s * SPAN_ITEMS, row + span_row[s],
                        p.max_rows, stage[warp], lane);
        } else {
            for (u32 i = s; i < s + GROUP_SPANS; i++)
                write_span(p, w, bits[i * 32 + lane], flat + i * SPAN_ITEMS, row + span_row[i], p.max_rows,
                           stage[warp], lane);
        }
    }
}

// ---- [rank, K] in two passes: flags, then rows ---------------------------------------------------

struct Flags {
    u32 *bits;
    u16 *span_count;
    u32 *segment_count;
    u32 *ticket;
};

__device__ __forceinline__ Flags open_flags(const Params &p)
{
    Flags f;
    f.bits = (u32 *)p.d_workspace;
    f.span_count = (u16 *)(f.bits + (u64)p.spans * 32);
    f.segment_count = (u32 *)(f.span_count + p.spans);
    f.ticket = f.segment_count + MAX_SEGMENTS;
    return f;
}

// One block a segment, a whole number of steps of WARPS * FLAG_SPANS spans; positions past the input
// get empty words.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, FLAG_BLOCKS)
nonzero_flag(const __grid_constant__ Params p)
{
    __shared__ u32 warp_count[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Flags f = open_flags(p);
    const Input in = open_input(p);
    const u32 first = blockIdx.x * p.segment_spans;
    const u32 last = min(first + p.segment_spans, p.spans);
    u32 total = 0;
    for (u32 span = first + warp * FLAG_SPANS; span < last; span += WARPS * FLAG_SPANS) {
        u32 flags[FLAG_SPANS];
        load_spans<FLAG_SPANS>(flags, in, (flat_t)span * SPAN_ITEMS, p.mask, lane);
#pragma unroll
        for (int s = 0; s < FLAG_SPANS; s++) {
            f.bits[(u64)(span + s) * 32 + lane] = flags[s];
            const u32 count = warp_sum((u32)__popc(flags[s]));
            if (lane == s) f.span_count[span + s] = (u16)count;
            total += count;
        }
    }
    if (lane == 0) warp_count[warp] = total;
    __syncthreads();  // every warp's count is in shared memory
    if (threadIdx.x == 0) {
        u32 sum = 0;
        for (u32 i = 0; i < WARPS; i++) sum += warp_count[i];
        f.segment_count[blockIdx.x] = sum;
        if (blockIdx.x == 0) *f.ticket = 0;
    }
}

// Sum of the first count (a warp's) of the span counts at counts, which are 16-byte aligned.
__device__ __forceinline__ u32 sum_span_counts(const u16 *counts, u32 count, u32 lane)
{
    u32 sum = 0;
    for (u32 i = lane * 8; i < count; i += 32 * 8) {
        const uint4 eight = *(const uint4 *)(counts + i);
        const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (i + 2 * k < count) sum += pairs[k] & 0xffff;
            if (i + 2 * k + 1 < count) sum += pairs[k] >> 16;
        }
    }
    return warp_sum(sum);
}

// Every warp takes a span (or a group of them, where few items are set) at a time. The first row of a
// span is the sum of the segments before its own and of the spans before it in its segment.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, WRITE_BLOCKS)
nonzero_write(const __grid_constant__ Params p)
{
    __shared__ __align__(16) u16 stage[WARPS][SPAN_ITEMS];
    __shared__ flat_t segment_row[MAX_SEGMENTS];
    __shared__ flat_t warp_total[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const Flags f = open_flags(p);

    constexpr u32 EACH = MAX_SEGMENTS / BLOCK_THREADS;
    u32 count[EACH];
    flat_t own = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 segment = threadIdx.x * EACH + i;
        count[i] = segment < p.num_segments ? f.segment_count[segment] : 0;
        own += count[i];
    }
    flat_t inclusive = warp_inclusive_sum(own, lane);
    if (lane == 31) warp_total[warp] = inclusive;
    __syncthreads();  // every warp's total is in shared memory
    flat_t row = inclusive - own, nonzeros = 0;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) {
        if (i < warp) row += warp_total[i];
        nonzeros += warp_total[i];
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        segment_row[threadIdx.x * EACH + i] = row;
        row += count[i];
    }
    __syncthreads();  // the first row of every segment is in shared memory
    if (blockIdx.x == 0 && threadIdx.x == 0) write_count(p, nonzeros);
    if (nonzeros == 0) return;

    const Writer w = make_writer(p, lane);
    const flat_t rows = count_rows(p, nonzeros), head = open_input(p).begin;
    const bool single = DENSE(nonzeros, p.num_items) || p.spans < GROUP_SPANS * WARPS * gridDim.x;
    const u32 step = single ? 1 : GROUP_SPANS;
    // The denser the output, the fewer writers keep DRAM busy, and the better its pages are used.
    if (p.spans >= 16 * WARPS * gridDim.x) {
        const u64 share = nonzeros == p.num_items ? 1 : nonzeros > p.num_items / 4 * 3 ? 2 : single ? 3 : WRITE_BLOCKS;
        if (blockIdx.x >= gridDim.x * share / WRITE_BLOCKS) return;
    }
    // Tickets keep the blocks that write at one time close together in the output: DRAM pages like that.
    __shared__ u32 drawn[2];
    u32 ticket = 0;
    if (threadIdx.x == 0) ticket = atomicAdd(f.ticket, 1);
    for (u32 turn = 0;; turn ^= 1) {
        if (threadIdx.x == 0) drawn[turn] = ticket;
        __syncthreads();  // the ticket is drawn; the one before it has been read
        const u32 span = (drawn[turn] * WARPS + warp) * step;
        if (span >= p.spans) return;
        if (threadIdx.x == 0) ticket = atomicAdd(f.ticket, 1);

        const u32 segment = __umulhi(span << 1, p.segment_multiplier) >> p.segment_shift;
        const u32 first = segment * p.segment_spans;
        const flat_t flat = (flat_t)span * SPAN_ITEMS - head;
        const u32 *bits = f.bits + (u64)span * 32;
        if (single) {
            const u32 flags = bits[lane];
            const u32 before = sum_span_counts(f.span_count + first, span - first, lane);
            write_span(p, w, flags, flat, segment_row[segment] + before, rows, stage[warp], lane);
            continue;
        }
        const uint2 four = *(const uint2 *)(f.span_count + span);
        const uint4 flags = ((const uint4 *)bits)[lane];
        const u32 before = sum_span_counts(f.span_count + first, span - first, lane);
        const u32 total = (four.x & 0xffff) + (four.x >> 16) + (four.y & 0xffff) + (four.y >> 16);
        flat_t at = segment_row[segment] + before;
        if (total == 0) continue;
        if (total <= SPAN_ITEMS) {
            write_group(p, w, flags, flat, at, rows, stage[warp], lane);
            continue;
        }
        for (u32 s = 0; s < GROUP_SPANS; s++) {
            write_span(p, w, bits[s * 32 + lane], flat + s * SPAN_ITEMS, at, rows, stage[warp], lane);
            at += f.span_count[span + s];
        }
    }
}
