// The benchmark's CUB peer: the flat positions of non-zero items by DeviceSelect::If. Built with nvcc.
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

template <typename T>
struct NonZero {
    const T *in;
    __device__ bool operator()(long long i) const { return in[i] != 0; }
};

template <typename T>
static int select(const void *in, long long items, long long *out, long long *count, void *storage, size_t *bytes,
                  cudaStream_t stream)
{
    return (int)cub::DeviceSelect::If(storage, *bytes, thrust::counting_iterator<long long>(0), out, count, items,
                                      NonZero<T>{(const T *)in}, stream);
}

extern "C" int cub_select(const void *in, int word_bytes, long long items, long long *out, long long *count,
                          void *storage, size_t *bytes, cudaStream_t stream)
{
    return word_bytes == 1 ? select<unsigned char>(in, items, out, count, storage, bytes, stream)
                           : select<float>(in, items, out, count, storage, bytes, stream);
}
