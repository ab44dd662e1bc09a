// What the benchmark needs beside the kernel: inputs, a kernel that holds the stream up, and the peer that
// gives a row to a thread and an atomic to a hit, in no order, as TensorRT's published Python sample does.

typedef unsigned long long u64;

// Gives about threshold / 2^32 of the items the value, and the others zero.
template <typename T>
__device__ void fill(T *out, u64 items, unsigned threshold, u64 value, u64 stride, u64 at)
{
    for (u64 i = at; i < items; i += stride) {
        u64 x = i + 0x9e3779b97f4a7c15ull;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        out[i] = threshold && (unsigned)(x >> 31) <= threshold ? (T)value : 0;
    }
}

extern "C" __global__ void fill_words(void *out, u64 items, unsigned word_bytes, unsigned threshold, u64 value)
{
    const u64 stride = (u64)gridDim.x * blockDim.x, at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (word_bytes == 1) fill((unsigned char *)out, items, threshold, value, stride, at);
    if (word_bytes == 2) fill((unsigned short *)out, items, threshold, value, stride, at);
    if (word_bytes == 4) fill((unsigned *)out, items, threshold, value, stride, at);
    if (word_bytes == 8) fill((u64 *)out, items, threshold, value, stride, at);
}

extern "C" __global__ void spin(u64 nanoseconds)
{
    u64 start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
}

extern "C" __global__ void atomic_rows(const float *in, u64 rows, u64 columns, long long *out, u64 *count)
{
    const u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    for (u64 column = 0; column < columns; column++) {
        if (in[row * columns + column] != 0.0f) {
            const u64 at = atomicAdd(count, 1ull);
            out[2 * at] = (long long)row;
            out[2 * at + 1] = (long long)column;
        }
    }
}
