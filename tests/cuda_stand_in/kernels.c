/* The device of the stand-in, and what is done on it: nothing. A kernel that is launched succeeds and
 * writes nothing; what it would have written is zeros, or what was copied there. Copies of up to 1 MiB
 * are made, so that indices, masks and lengths made on the CPU are what they are.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef struct { unsigned x, y, z; } dim3;

int fake_gpu_major(void), fake_gpu_minor(void), fake_gpu_has_memory(void), fake_gpu_owns(const void *p);
size_t fake_gpu_bytes(void);

#define COPIED (1UL << 20)
#define IS_HOPPER (fake_gpu_major() >= 9)
#define MULTIPROCESSORS (IS_HOPPER ? 132 : 108)
#define SHARED (IS_HOPPER ? 233472 : 167936)

/* cudaDeviceProp in driver_types.h of CUDA 13; the other fields are zero. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total_memory, shared_memory;
    int registers, warp_size;
    size_t pitch;
    int max_threads, dimensions[3], grid[3];
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch;
    int multiprocessors, integrated, maps_host_memory, textures[39];
    size_t surface_alignment;
    int concurrent, ecc, bus, device, domain, tcc, engines, unified, bus_width, l2, persisting_l2;
    int threads_of_multiprocessor, priorities, l1_global, l1_local;
    size_t shared_of_multiprocessor;
    int registers_of_multiprocessor, others[8];
    size_t shared_opt_in;
    int tables, managed, blocks_of_multiprocessor, window;
    size_t reserved_shared;
    int rest[76];
};

cudaError_t cudaGetDeviceProperties(struct properties *p, int d) {
    memset(p, 0, sizeof(*p));
    strcpy(p->name, "a GPU that is not there");
    p->total_memory = fake_gpu_bytes();
    p->shared_memory = 49152;
    p->registers = p->registers_of_multiprocessor = 65536;
    p->warp_size = 32;
    p->max_threads = 1024;
    p->dimensions[0] = p->dimensions[1] = 1024;
    p->dimensions[2] = 64;
    p->grid[0] = 0x7fffffff;
    p->grid[1] = p->grid[2] = 65535;
    p->constant_memory = 65536;
    p->major = fake_gpu_major();
    p->minor = fake_gpu_minor();
    p->texture_alignment = 512;
    p->multiprocessors = MULTIPROCESSORS;
    p->l2 = 40 << 20;
    p->threads_of_multiprocessor = 2048;
    p->shared_of_multiprocessor = SHARED;
    p->shared_opt_in = SHARED - 1024;
    p->blocks_of_multiprocessor = 32;
    p->reserved_shared = 1024;
    return 0;
}

cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int d) {
    static const int values[][2] = {
        {1, 1024},  {2, 1024},       {3, 1024},  {4, 64},     {5, 0x7fffffff}, {6, 65535},
        {7, 65535}, {8, 49152},      {9, 65536}, {10, 32},    {12, 65536},     {13, 1410000},
        {31, 1},    {38, 40 << 20},  {39, 2048}, {41, 1},     {78, 1},         {82, 65536},
        {95, 1},    {106, 32},       {111, 1024}};
    *value = 0;
    for (unsigned i = 0; i < sizeof(values) / sizeof(*values); i++)
        if (values[i][0] == attribute)
            *value = values[i][1];
    if (!fake_gpu_has_memory())
        *value = 0;
    else if (attribute == 16)
        *value = MULTIPROCESSORS;
    else if (attribute == 76)
        *value = fake_gpu_minor();
    else if (attribute == 75)
        *value = fake_gpu_major();
    else if (attribute == 81)
        *value = SHARED;
    else if (attribute == 97)
        *value = SHARED - 1024;
    return 0;
}

/* Launches. */
static __thread struct { dim3 grid, block; size_t shared; cudaStream_t stream; } pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
    *(cudaStream_t *)stream = pushed.stream;
    return 0;
}

cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return 0;
}

struct attributes {
    size_t shared, constant, local;
    int max_threads, registers, ptx, binary, cache, max_dynamic, carveout, cluster[4], others[18];
};

cudaError_t cudaFuncGetAttributes(struct attributes *a, const void *function) {
    memset(a, 0, 3 * sizeof(size_t) + 7 * sizeof(int));
    a->max_threads = 1024;
    a->registers = 32;
    a->ptx = a->binary = 10 * fake_gpu_major() + fake_gpu_minor();
    a->max_dynamic = SHARED - 1024;
    return 0;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int b, size_t s) {
    *n = 2048 / b > 0 ? 2048 / b : 1;
    return 0;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b,
                                                                   size_t s, unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, b, s);
}

cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) {
    static char zeros[1 << 20];
    *p = zeros;
    return 0;
}

cudaError_t cudaEventElapsedTime(float *ms, void *from, void *to) {
    *ms = 1;
    return 0;
}

/* Memory. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, cudaStream_t s) {
    if (size <= COPIED && fake_gpu_has_memory())
        memmove(to, from, size);
    return 0;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    return cudaMemcpyAsync(to, from, size, kind, 0);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t s) {
    if (size <= COPIED && fake_gpu_has_memory())
        memset(p, value, size);
    return 0;
}

cudaError_t cudaMemset(void *p, int value, size_t size) { return cudaMemsetAsync(p, value, size, 0); }

static size_t first_pinned = 0x180000000000UL, next_pinned = 0x180000000000UL;

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) {
    *p = (void *)next_pinned;
    next_pinned += (size + 4095) / 4096 * 4096;
    if (mmap(*p, size, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        abort();
    return 0;
}

cudaError_t cudaMallocHost(void **p, size_t size) { return cudaHostAlloc(p, size, 0); }

struct pointer { int type, device; void *of_device, *of_host; };

cudaError_t cudaPointerGetAttributes(struct pointer *found, const void *p) {
    int is_pinned = first_pinned <= (size_t)p && (size_t)p < next_pinned;
    found->type = fake_gpu_owns(p) ? 2 : is_pinned ? 1 : 0;
    found->device = 0;
    found->of_device = found->of_host = (void *)p;
    return 0;
}
