// The kernels of the stand-in libnvinfer. kernels.h is made from this file, and committed, by
//   nvcc -ptx -arch=compute_80 -O3 kernels.cu -o kernels.ptx, then make_kernels.py kernels.ptx > kernels.h
// cuda_kernel.c has the same on the host for the stand-in driver. Sums run in one fixed order, so equal runs
// give equal bits.

extern "C" __global__ void standin_gemm(const float *a, const float *w, const float *b, float *y, int k,
                                        int n, int act) {
  __shared__ float part[8][32];
  int column = (int)(blockIdx.x * 32 + threadIdx.x);
  const float *row = a + (long long)blockIdx.y * k;
  float sum = 0.0f;
  if (column < n)
    for (int i = (int)threadIdx.y; i < k; i += 8)
      sum += row[i] * w[(long long)i * n + column];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < n) {
    float total = b[column];
    for (int i = 0; i < 8; i++)
      total += part[i][threadIdx.x];
    y[(long long)blockIdx.y * n + column] = act && total < 0.0f ? 0.0f : total;
  }
}

extern "C" __global__ void standin_add(const float *a, const float *b, float *y, long long count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)
    y[i] = a[i] + b[i];
}

extern "C" __global__ void standin_copy(const unsigned char *a, unsigned char *y, long long size) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < size; i += gridDim.x * 256ll)
    y[i] = a[i];
}

extern "C" __global__ void standin_cache(float *cache, const float *x, long long count, long long x_count) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)
    cache[i] = cache[i] * 0.5f + x[i % x_count];
}

// One thread: small tensors only.
extern "C" __global__ void standin_count(const float *a, long long *counted, long long count) {
  long long found = 0;
  for (long long i = 0; i < count; i++)
    found += a[i] > 0.0f;
  *counted = found;
}

extern "C" __global__ void standin_positive(const float *a, float *y, long long count, long long room) {
  long long found = 0;
  for (long long i = 0; i < count && found < room; i++)
    if (a[i] > 0.0f)
      y[found++] = a[i];
}
