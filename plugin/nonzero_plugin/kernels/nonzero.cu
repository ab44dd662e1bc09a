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
//   nonzero_small          one launch, no workspace: each block recounts the spans before its own.
//   nonzero_select_*       [K, rank] in one pass: tiles in the order of an atomic ticket, each tile
//                          finds the rows before it by decoupled look-back (Merrill & Garland 2016).
//                          Workspace, zeroed on the same stream before the launch:
//                            u64 ticket | u64 status[num_tiles]
//                          A block waits only for tiles whose tickets were drawn before its own, so
//                          by blocks that already run: no assumption about which blocks are resident.
//                          And it shows the count of every tile it drew before it waits for any.
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
// Defines: WORD_BYTES (1, 2, 4, 8), INDEX_BYTES (4, 8), WIDE (0, 1), and of launch.py and tiles.py
// BLOCK_THREADS, SMALL_THREADS, SPAN_ITEMS, ALIGNMENT, MAX_BURST, MAX_SEGMENTS, and LARGE_TILE_BLOCKS,
// FLAG_BLOCKS and WRITE_BLOCKS (a processor's).

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
#define ROUND_ROWS (WARPS * SPAN_ITEMS)                   // most rows a block stages at a time
#define ROUND_SPANS 64                                    // most spans it takes at a time: 16-bit offsets
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
    u32 streaming;  // indices leave L2 before anything else
    u32 num_tiles;
    u32 tile_spans;
    u32 burst;  // tiles a block loads before it writes
    u32 spans;  // with a word of flags, a multiple of ROUND_SPANS
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
        // Asking for all of them first makes the batch wait as one, and zeros cost no votes.
        word_t any = 0;
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) any |= items[i];
        if (!__any_sync(ALL_LANES, (any & (word_t)mask) != 0)) continue;
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

// Indices are not read again here, so what is read again stays in L2 instead where not all has room.
template <typename T>
__device__ __forceinline__ void store_index(const Params &p, T *address, T value)
{
    if (p.streaming) __stcs(address, value);
    else *address = value;
}

// Rows are written by a group of THREADS threads, a block or a warp, from a stage in shared memory that
// holds the offsets of their items.

// What one thread writes. [K, rank]: the group writes whole rows as one run of elements, and each thread
// keeps to one column. The coordinate is flat / stride[column] mod extent[column], and the quotient
// by the product of both is flat / stride[column - 1].
struct Writer {
    u32 row, rows_per_step;  // rank_last: first row (none: beyond any) and rows in a step of the group
    u32 skew_mask;           // rank_last: rows past the start of a cache line, where rows divide one
    flat_t inner, outer, extent;
    u32 inner_shift, outer_shift;
};

template <u32 THREADS>
__device__ __forceinline__ Writer make_writer(const Params &p, u32 thread)
{
    Writer w;
    w.rows_per_step = THREADS / p.rank;
    const u32 row = thread / p.rank, column = thread - row * p.rank;
    const u32 before = column ? column - 1 : 0;
    w.row = row < w.rows_per_step ? row : 2 * ROUND_ROWS;
    w.skew_mask = p.rank & (p.rank - 1) ? 0 : LINE_INDICES / p.rank - 1;
    w.inner = (flat_t)p.multiplier[column];
    w.inner_shift = p.shift[column];
    w.outer = (flat_t)p.multiplier[before];
    w.outer_shift = p.shift[before];
    w.extent = (flat_t)p.extent[column];
    return w;
}

// Calls emit(r, stage[r]) for r in 0 .. total - 1. The group's accesses start skew rows before a multiple
// of its threads, so that with a fitting skew every store of a warp but the outer two fills whole lines.
template <u32 THREADS, typename Emit>
__device__ __forceinline__ void for_rows(int total, int skew, const u16 *stage, int thread, Emit emit)
{
    constexpr int STEP = THREADS;
    if (thread >= skew && thread - skew < total) emit(thread - skew, stage[thread - skew]);
    int r = STEP - skew + thread;
    for (; r - thread + 4 * STEP <= total; r += 4 * STEP) {
        u32 offset[4];
#pragma unroll
        for (int i = 0; i < 4; i++) offset[i] = stage[r + STEP * i];
#pragma unroll
        for (int i = 0; i < 4; i++) emit(r + STEP * i, offset[i]);
    }
    for (; r < total; r += STEP) emit(r, stage[r]);
}

// One row of [rank, K] for staged items: the coordinate along one dimension. The first dimension
// needs no remainder (OUTER), the last no quotient (INNER).
template <u32 THREADS, bool INNER, bool OUTER>
__device__ __forceinline__ void write_dimension(const Params &p, u32 d, flat_t flat, flat_t row, u32 total,
                                                flat_t num_rows, const u16 *stage, u32 thread)
{
    const u64 start = (u64)d * num_rows + row;
    index_t *const out = p.d_indices + start;
    const flat_t inner = (flat_t)p.multiplier[d], outer = OUTER ? (flat_t)p.multiplier[d - 1] : 0;
    const u32 inner_shift = p.shift[d], outer_shift = OUTER ? p.shift[d - 1] : 0;
    const flat_t extent = (flat_t)p.extent[d];
    for_rows<THREADS>(total, (u32)start & (LINE_INDICES - 1), stage, thread, [&](int r, u32 offset) {
        const flat_t item = flat + offset;
        flat_t coordinate = INNER ? divide(item, inner, inner_shift) : item;
        if (OUTER) coordinate -= divide(item, outer, outer_shift) * extent;
        store_index(p, out + r, (index_t)coordinate);
    });
}

// Writes rows row .. row + total - 1 for the staged items, which are offsets from item flat.
template <u32 THREADS>
__device__ __forceinline__ void write_rows(const Params &p, const Writer &w, flat_t flat, flat_t row, u32 total,
                                           flat_t num_rows, const u16 *stage, u32 thread)
{
    if (!p.rank_last) {
        write_dimension<THREADS, true, false>(p, 0, flat, row, total, num_rows, stage, thread);
#pragma unroll 1
        for (u32 d = 1; d < p.rank - 1; d++)
            write_dimension<THREADS, true, true>(p, d, flat, row, total, num_rows, stage, thread);
        write_dimension<THREADS, false, true>(p, p.rank - 1, flat, row, total, num_rows, stage, thread);
    } else if (p.rank == 2 && (u64)p.d_indices % sizeof(pair_t) == 0) {
        pair_t *const out = (pair_t *)p.d_indices + row;
        const flat_t outer = (flat_t)p.multiplier[0], extent = (flat_t)p.extent[1];
        const u32 shift = p.shift[0];
        for_rows<THREADS>(total, (u32)row & w.skew_mask, stage, thread, [&](int r, u32 offset) {
            const flat_t item = flat + offset;
            const flat_t quotient = divide(item, outer, shift);
            pair_t pair;
            pair.x = (index_t)quotient;
            pair.y = (index_t)(item - quotient * extent);
            store_index(p, out + r, pair);
        });
    } else {
        const int skew = (int)((u32)row & w.skew_mask);
        index_t *out = p.d_indices + (u64)row * p.rank - skew * (int)p.rank + thread;
        const u32 step = w.rows_per_step * p.rank;
#pragma unroll 2
        for (int r = (int)w.row - skew; r < (int)total; r += w.rows_per_step, out += step) {
            if (r < 0) continue;
            const flat_t item = flat + stage[r];
            store_index(p, out, (index_t)(divide(item, w.inner, w.inner_shift) -
                                       divide(item, w.outer, w.outer_shift) * w.extent));
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

// Stages a warp's words of flags, WORDS for each lane in order, from stage on; the lane's first item has
// that offset. Returns how many it staged.
template <int WORDS>
__device__ __forceinline__ u32 stage_words(const u32 (&flags)[WORDS], u16 *stage, u32 offset, u32 lane)
{
    u32 count = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) count += __popc(flags[i]);
    const u32 inclusive = warp_inclusive_sum(count, lane);
    const u32 total = __shfl_sync(ALL_LANES, inclusive, 31);
    u32 slot = (u32)__cvta_generic_to_shared(stage + (inclusive - count));
    if constexpr (WORDS == 1) {
        if (total == SPAN_ITEMS) {  // all lanes would meet in two banks
#pragma unroll
            for (u32 i = lane; i < SPAN_ITEMS; i += 32) stage[i] = (u16)(offset + i - 32 * lane);
        } else {
            stage_pair(slot, flags[0] & 0xffff, offset, flags[0] & 0xffff0000u, offset);
        }
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; i += 2)
            slot = stage_pair(slot, flags[i], offset + 32 * i, flags[i + 1], offset + 32 * i + 32);
    }
    return total;
}

// A thread's words of flags.
template <int WORDS>
__device__ __forceinline__ void load_words(u32 (&flags)[WORDS], const u32 *words)
{
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            const uint4 four = *(const uint4 *)(words + i);
            flags[i] = four.x, flags[i + 1] = four.y, flags[i + 2] = four.z, flags[i + 3] = four.w;
        }
    } else if constexpr (WORDS == 2) {
        const uint2 two = *(const uint2 *)words;
        flags[0] = two.x, flags[1] = two.y;
    } else {
        flags[0] = *words;
    }
}

template <int WORDS>
__device__ __forceinline__ void stage_part(const u32 *bits, u16 *stage, u32 lane)
{
    u32 flags[WORDS];
    load_words<WORDS>(flags, bits + threadIdx.x * WORDS);
    stage_words<WORDS>(flags, stage, threadIdx.x * (32 * WORDS), lane);
}

// Stages a warp's part of a round of spans (8, 16, 32 or 64, with at most ROUND_ROWS non-zeros) whose
// words are at bits.
__device__ __forceinline__ void stage_round(u32 spans, const u32 *bits, u16 *stage, u32 lane)
{
    if (spans == WARPS) stage_part<1>(bits, stage, lane);
    else if (spans == 2 * WARPS) stage_part<2>(bits, stage, lane);
    else if (spans == 4 * WARPS) stage_part<4>(bits, stage, lane);
    else stage_part<8>(bits, stage, lane);
}

__device__ __forceinline__ u32 limit_rows(u32 total, flat_t row, flat_t num_rows)
{
    return row >= num_rows ? 0 : (u32)min((flat_t)total, num_rows - row);
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

// ---- few items: every block counts what comes before its span ------------------------------------

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, 1)
nonzero_small(const __grid_constant__ Params p)
{
    __shared__ u32 span_count[32], word[32], word_row[32];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, span = blockIdx.x;
    const Input in = open_input(p);
    u32 flags[1] = {0};
    // Without a row length to know, the spans after this one do not matter.
    if (!p.rank_last || warp <= span) load_spans<1, 128>(flags, in, warp * SPAN_ITEMS, p.mask, lane);
    const u32 count = __popc(flags[0]);
    const u32 inclusive = warp_inclusive_sum(count, lane);
    if (lane == 31) span_count[warp] = inclusive;
    if (warp == span) {
        word[lane] = flags[0];
        word_row[lane] = inclusive - count;
    }
    __syncthreads();  // every span's count and this span's flags are in shared memory
    const u32 nonzeros = warp_sum(span_count[lane]);
    if (span == p.num_tiles - 1 && threadIdx.x == 0) write_count(p, nonzeros);
    const u32 row = warp_sum(lane < span ? span_count[lane] : 0u) + word_row[warp] +
                    __popc(word[warp] & ((1u << lane) - 1));
    const flat_t num_rows = count_rows(p, nonzeros);
    if (!(word[warp] >> lane & 1) || row >= num_rows) return;
    const flat_t item = span * SPAN_ITEMS + threadIdx.x - in.begin;
    index_t *out = p.d_indices + (p.rank_last ? row * p.rank : row);
    const flat_t stride = p.rank_last ? 1 : num_rows;
    flat_t outer = 0;
    for (u32 d = 0; d < p.rank; d++, out += stride) {
        const flat_t inner = divide(item, (flat_t)p.multiplier[d], p.shift[d]);
        *out = (index_t)(inner - outer * (flat_t)p.extent[d]);
        outer = inner;
    }
}

// ---- [K, rank] in one pass: decoupled look-back --------------------------------------------------

// A tile's status: nothing yet, the tile's own count, or the count up to its end.
#define STATUS_PARTIAL (1ull << 62)
#define STATUS_INCLUSIVE (2ull << 62)
#define STATUS_STOP (3ull << 62)
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

// How many items before tile are set, by one whole warp: lane l looks at the l-th tile back. Stops
// at a tile that knows the count up to its end, or at tile since: then known is false and the result is
// what lies between the end of since and tile.
__device__ __forceinline__ u64 look_back(const u64 *status, u32 tile, long long since, u32 lane, bool &known)
{
    constexpr int AHEAD = 4;  // loads under way at a time
    u64 before = 0;
    for (long long at = (long long)tile - 1 - lane;;) {
        u64 ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ahead[i] = at - 32 * i > since ? load_status(status + at - 32 * i) : STATUS_STOP;
#pragma unroll
        for (int i = 0; i < AHEAD; i++, at -= 32) {
            u64 seen = ahead[i];
            u32 last, needed;
            for (;;) {
                last = __ballot_sync(ALL_LANES, seen >= STATUS_INCLUSIVE);
                // Tiles beyond the nearest last one do not matter.
                needed = last ? (last & -last) - 1 : ALL_LANES;
                if (!(__ballot_sync(ALL_LANES, seen == 0) & needed)) break;
                __nanosleep(100);  // leaves the memory to those who are waited for
                seen = at > since ? load_status(status + at) : STATUS_STOP;
            }
            const bool counts = (needed >> lane) & 1;
            before += warp_sum(counts ? (u32)seen : 0u);  // partial: at most a tile
            if (last) {
                const u64 end = __shfl_sync(ALL_LANES, seen, __ffs(last) - 1);
                known = end < STATUS_STOP;
                return before + (end & STATUS_VALUE);
            }
        }
    }
}

__device__ __forceinline__ u64 *tile_status(const Params &p)
{
    return (u64 *)p.d_workspace + 1;
}

// Shows the others a tile's own count, as soon as it is known. By one thread.
__device__ __forceinline__ void publish_tile(const Params &p, u32 tile, u32 tile_count)
{
    store_status(tile_status(p) + tile, STATUS_PARTIAL | tile_count);
}

// Shows the others the count up to the end of a tile. By one thread.
__device__ __forceinline__ void publish_end(const Params &p, u32 tile, u64 nonzeros)
{
    store_status(tile_status(p) + tile, STATUS_INCLUSIVE | nonzeros);
    if (tile == p.num_tiles - 1) write_count(p, nonzeros);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
nonzero_select_small(const __grid_constant__ Params p)
{
    __shared__ __align__(16) u16 stage[ROUND_ROWS];
    __shared__ u32 warp_count[WARPS], ticket;
    __shared__ flat_t tile_row;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) ticket = (u32)atomicAdd((u64 *)p.d_workspace, 1ull);
    __syncthreads();  // the ticket is drawn
    const u32 tile = ticket;
    const Input in = open_input(p);
    const flat_t v = (flat_t)tile * (WARPS * SPAN_ITEMS);
    u32 flags[1];
    load_spans<1>(flags, in, v + warp * SPAN_ITEMS, p.mask, lane);
    const u32 count = warp_sum((u32)__popc(flags[0]));
    if (lane == 0) warp_count[warp] = count;
    __syncthreads();  // every warp's count is in shared memory
    const u32 counts = lane < WARPS ? warp_count[lane] : 0;
    const u32 total = warp_sum(counts);
    if (threadIdx.x == 0) publish_tile(p, tile, total);
    stage_words<1>(flags, stage + warp_sum(lane < warp ? counts : 0u), threadIdx.x * 32, lane);
    if (warp == 0) {
        bool known;
        const u64 before = look_back(tile_status(p), tile, -1, lane, known);
        if (lane == 0) {
            publish_end(p, tile, before + total);
            tile_row = (flat_t)before;
        }
    }
    __syncthreads();  // the tile's first row is known and its items are staged
    const u32 rows = limit_rows(total, tile_row, p.max_rows);
    const Writer w = make_writer<BLOCK_THREADS>(p, threadIdx.x);
    write_rows<BLOCK_THREADS>(p, w, v - in.begin, tile_row, rows, p.max_rows, stage, threadIdx.x);
}

struct Tile {
    u32 number, count;
    flat_t row;      // of the first non-zero
    bool row_known;  // or row counts from the end of the tile before
};

// A block loads a burst of tiles, then writes their rows: DRAM likes to read for a while and to write
// for a while. The tiles of a burst are apart, so that blocks which write at one time write close together.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, LARGE_TILE_BLOCKS)
nonzero_select_large(const __grid_constant__ Params p)
{
    extern __shared__ __align__(16) u32 words[];  // of each tile: its flags, and every span's first row in it
    __shared__ __align__(16) u16 stage[ROUND_ROWS];
    __shared__ Tile tiles[MAX_BURST];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, spans = p.tile_spans;
    const Input in = open_input(p);
    const auto bits_of = [&](u32 i) { return words + i * (spans * 33); };
    const auto span_rows_of = [&](u32 i) { return words + i * (spans * 33) + spans * 32; };
    for (;;) {
        u32 loaded = 0, ticket = 0;
        // The next ticket is drawn while a tile is loaded, but never kept while others are written.
        if (threadIdx.x == 0) ticket = (u32)atomicAdd((u64 *)p.d_workspace, 1ull);
        for (; loaded < p.burst; loaded++) {
            Tile &tile = tiles[loaded];
            if (threadIdx.x == 0) {
                tile.number = ticket;
                tile.count = 0;
            }
            __syncthreads();  // the ticket is drawn; the tile before is loaded
            if (threadIdx.x == 0 && loaded) publish_tile(p, tiles[loaded - 1].number, tiles[loaded - 1].count);
            if (tile.number >= p.num_tiles) break;
            if (threadIdx.x == 0 && loaded + 1 < p.burst) ticket = (u32)atomicAdd((u64 *)p.d_workspace, 1ull);
            const flat_t v = (flat_t)tile.number * (spans * SPAN_ITEMS);
            u32 total = 0;
#pragma unroll 1
            for (u32 first = warp * FLAG_SPANS; first < spans; first += WARPS * FLAG_SPANS) {
                u32 flags[FLAG_SPANS];
                load_spans<FLAG_SPANS, 128>(flags, in, v + first * SPAN_ITEMS, p.mask, lane);
#pragma unroll
                for (int s = 0; s < FLAG_SPANS; s++) {
                    bits_of(loaded)[(first + s) * 32 + lane] = flags[s];
                    const u32 count = warp_sum((u32)__popc(flags[s]));
                    if (lane == s) span_rows_of(loaded)[first + s] = count;
                    total += count;
                }
            }
            if (lane == 0) atomicAdd(&tile.count, total);
        }
        if (loaded == 0) return;
        __syncthreads();  // every tile's flags and counts are in shared memory
        if (threadIdx.x == 0) publish_tile(p, tiles[loaded - 1].number, tiles[loaded - 1].count);

        for (u32 i = warp; i < loaded; i += WARPS) {
            u32 *const span_row = span_rows_of(i);
            u32 before = 0;
            for (u32 s = lane; s - lane < spans; s += 32) {
                const u32 own = s < spans ? span_row[s] : 0;
                const u32 inclusive = warp_inclusive_sum(own, lane);
                if (s < spans) span_row[s] = before + inclusive - own;
                before += __shfl_sync(ALL_LANES, inclusive, 31);
            }
            const long long since = i ? (long long)tiles[i - 1].number : -1;
            bool known;
            const u64 row = look_back(tile_status(p), tiles[i].number, since, lane, known);
            if (lane == 0) {
                tiles[i].row = (flat_t)row;
                tiles[i].row_known = known;
            }
        }
        __syncthreads();  // what lies before every tile and span is in shared memory
        if (threadIdx.x == 0) {
            flat_t end = 0;
            for (u32 i = 0; i < loaded; i++) {
                if (!tiles[i].row_known) tiles[i].row += end;
                end = tiles[i].row + tiles[i].count;
                publish_end(p, tiles[i].number, end);
            }
        }
        __syncthreads();  // the tiles' first rows are in shared memory

        // A warp writes a tile where few items are set, the block together the others.
        const Writer warp_writer = make_writer<32>(p, lane);
        u16 *const warp_stage = stage + warp * SPAN_ITEMS;
        for (u32 i = warp; i < loaded; i += WARPS) {
            const Tile &tile = tiles[i];
            if (tile.count == 0 || tile.count > SPAN_ITEMS) continue;
            u32 staged = 0;
            for (u32 s = 0; s < spans; s += 8) {
                u32 flags[8];
                load_words<8>(flags, bits_of(i) + s * 32 + lane * 8);
                staged += stage_words<8>(flags, warp_stage + staged, s * SPAN_ITEMS + lane * 256, lane);
            }
            __syncwarp();  // the stage is filled before others read it
            const flat_t flat = (flat_t)tile.number * (spans * SPAN_ITEMS) - in.begin;
            const u32 rows = limit_rows(staged, tile.row, p.max_rows);
            write_rows<32>(p, warp_writer, flat, tile.row, rows, p.max_rows, warp_stage, lane);
            __syncwarp();  // the stage is read before it is filled again
        }
        const Writer writer = make_writer<BLOCK_THREADS>(p, threadIdx.x);
        for (u32 i = 0; i < loaded; i++) {
            const Tile &tile = tiles[i];
            if (tile.count <= SPAN_ITEMS) continue;
            const flat_t flat = (flat_t)tile.number * (spans * SPAN_ITEMS) - in.begin;
            const u32 *const span_row = span_rows_of(i);
            for (u32 s = 0, n; s < spans; s += n) {
                // As many spans as fit the stage.
                n = ROUND_SPANS;
                const u32 first = span_row[s];
                u32 end;
                for (;; n /= 2) {
                    if (s + n > spans) continue;
                    end = s + n == spans ? tile.count : span_row[s + n];
                    if (end - first <= ROUND_ROWS) break;
                }
                if (end == first) continue;
                __syncthreads();  // the stage is read before it is filled again
                stage_round(n, bits_of(i) + s * 32, stage + (span_row[s + n / WARPS * warp] - first), lane);
                __syncthreads();  // the stage is filled before others read it
                const flat_t row = tile.row + first;
                const u32 rows = limit_rows(end - first, row, p.max_rows);
                write_rows<BLOCK_THREADS>(p, writer, flat + s * SPAN_ITEMS, row, rows, p.max_rows, stage, threadIdx.x);
            }
        }
        __syncthreads();  // tiles and stage are read before they are filled again
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

// What the writing loop knows.
struct Turns {
    Flags f;
    const flat_t *segment_row;
    flat_t num_rows, head;
    u32 blocks;  // that take turns
};

__device__ __forceinline__ u32 sum_halves(u32 pair)
{
    return (pair & 0xffff) + (pair >> 16);
}

// What a thread loads for a turn of WARPS * WORDS spans. Span counts stay as they lie in memory until
// they are needed, so that nothing waits for them before.
template <int WORDS>
struct Turn {
    u32 span, segment;
    u32 flags[WORDS];
    u32 counts;   // of spans 2 * lane and 2 * lane + 1 of the turn
    uint4 before;  // of eight spans of its segment before it, the first 256 by one warp
};

template <int WORDS>
__device__ __forceinline__ Turn<WORDS> load_turn(const Params &p, const Turns &t, u32 ticket, u32 lane)
{
    Turn<WORDS> turn;
    turn.span = ticket * (WARPS * WORDS);
    turn.segment = __umulhi(turn.span << 1, p.segment_multiplier) >> p.segment_shift;
    turn.counts = 0;
    turn.before = {0, 0, 0, 0};
    if (turn.span >= p.spans) return turn;
    const u32 first = turn.segment * p.segment_spans;
    load_words<WORDS>(turn.flags, t.f.bits + (u64)turn.span * 32 + threadIdx.x * WORDS);
    if (2 * lane < WARPS * WORDS) turn.counts = ((const u32 *)(t.f.span_count + turn.span))[lane];
    if (first + 8 * lane < turn.span) turn.before = ((const uint4 *)(t.f.span_count + first))[lane];
    return turn;
}

// The row of a turn's first non-zero, by a warp.
template <int WORDS>
__device__ __forceinline__ flat_t first_row(const Params &p, const Turns &t, const Turn<WORDS> &turn, u32 lane)
{
    uint4 eight = turn.before;
    u32 sum = 0;
    for (u32 i = turn.segment * p.segment_spans + 8 * lane; i < turn.span;) {
        sum += sum_halves(eight.x) + sum_halves(eight.y) + sum_halves(eight.z) + sum_halves(eight.w);
        i += 8 * 32;
        if (i < turn.span) eight = *(const uint4 *)(t.f.span_count + i);
    }
    return t.segment_row[turn.segment] + warp_sum(sum);
}

// A block takes turns of WARPS * WORDS spans. Tickets keep the blocks that write at one time close
// together in the output: DRAM pages like that. A turn is loaded while the one before is written.
template <int WORDS>
__device__ __forceinline__ void take_turns(const Params &p, const Turns &t, u16 *stage, u32 lane, u32 warp)
{
    constexpr u32 SPANS = WARPS * WORDS;
    __shared__ u32 drawn[2];
    const Writer w = make_writer<BLOCK_THREADS>(p, threadIdx.x);
    u32 ticket = 0;
    if (threadIdx.x == 0) ticket = t.blocks + atomicAdd(t.f.ticket, 1);
    Turn<WORDS> turn = load_turn<WORDS>(p, t, blockIdx.x, lane);
    for (u32 parity = 0; turn.span < p.spans; parity ^= 1) {
        if (threadIdx.x == 0) drawn[parity] = ticket;
        __syncthreads();  // the next ticket is drawn; the stage is read before it is filled again
        if (threadIdx.x == 0) ticket = t.blocks + atomicAdd(t.f.ticket, 1);
        const Turn<WORDS> next = load_turn<WORDS>(p, t, drawn[parity], lane);
        const u32 even = turn.counts & 0xffff, odd = turn.counts >> 16;
        const u32 total = warp_sum(even + odd);
        const u32 n = total <= ROUND_ROWS ? SPANS : WARPS;
        flat_t row = total ? first_row(p, t, turn, lane) : 0;
        for (u32 s = 0; s < SPANS && total; s += n) {
            const u32 from = 2 * lane - s;  // wraps for what comes before the round
            const u32 own = n / WARPS * warp;
            const u32 round = warp_sum((from < n ? even : 0) + (from + 1 < n ? odd : 0));
            const u32 before = warp_sum((from < own ? even : 0) + (from + 1 < own ? odd : 0));
            const u32 rows = limit_rows(round, row, t.num_rows);
            if (rows) {
                if (s) __syncthreads();  // the stage is read before it is filled again
                if (n == SPANS) stage_words<WORDS>(turn.flags, stage + before, threadIdx.x * (32 * WORDS), lane);
                else stage_part<1>(t.f.bits + (u64)(turn.span + s) * 32, stage + before, lane);
                __syncthreads();  // the stage is filled before others read it
                const flat_t flat = (flat_t)(turn.span + s) * SPAN_ITEMS - t.head;
                write_rows<BLOCK_THREADS>(p, w, flat, row, rows, t.num_rows, stage, threadIdx.x);
            }
            row += round;
        }
        turn = next;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, WRITE_BLOCKS)
nonzero_write(const __grid_constant__ Params p)
{
    __shared__ __align__(16) u16 stage[ROUND_ROWS];
    __shared__ flat_t segment_row[MAX_SEGMENTS];
    __shared__ flat_t warp_total[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    Turns t;
    t.f = open_flags(p);
    t.head = open_input(p).begin;
    t.segment_row = segment_row;

    constexpr u32 EACH = MAX_SEGMENTS / BLOCK_THREADS;
    u32 count[EACH];
    flat_t own = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 segment = threadIdx.x * EACH + i;
        count[i] = segment < p.num_segments ? t.f.segment_count[segment] : 0;
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
    t.num_rows = count_rows(p, nonzeros);

    const u32 average = (u32)(nonzeros / p.spans);  // of a span
    const bool sparse = average < ROUND_ROWS / ROUND_SPANS / 8 * 7;
    // The denser the output, the fewer writers keep DRAM busy, and the better its pages are used.
    t.blocks = gridDim.x;
    if (p.spans >= 16 * WARPS * gridDim.x && !sparse) {
        const u32 share = average > SPAN_ITEMS / 4 * 3 ? 1 : 2;
        t.blocks = max(1u, (u32)((u64)gridDim.x * share / WRITE_BLOCKS));
        if (blockIdx.x >= t.blocks) return;
    }
    if (sparse && p.spans >= 2 * ROUND_SPANS * t.blocks) take_turns<8>(p, t, stage, lane, warp);
    else if (sparse && p.spans >= 4 * WARPS * t.blocks) take_turns<4>(p, t, stage, lane, warp);
    else take_turns<1>(p, t, stage, lane, warp);
}
