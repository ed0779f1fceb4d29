/* A CUDA runtime without a GPU, preloaded in front of the real one: it keeps count of bytes and
 * hands out ascending addresses, so that torch's own caching allocator runs and can be compared
 * with the model. Compiled by build.py, with kernels.c and libraries.c. No header of CUDA is used, as
 * pip does not install all of them: handles are pointers, and codes are numbers.
 *
 * FAKE_GPU_BYTES is the memory of the device, FAKE_GPU_MAJOR and _MINOR its compute capability. Nothing is behind
 * the addresses unless FAKE_GPU_HAS_MEMORY is set: then there are zeros, and what is copied there. An
 * event has happened unless fake_gpu_busy is set.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 0x200000UL

enum { OK = 0, OUT_OF_MEMORY = 2, NOT_READY = 600 };
typedef int cudaError_t, CUresult;
typedef void *cudaStream_t, *cudaEvent_t;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;

static size_t taken, next_address = 0x7f0000000000UL;
static const size_t first_backed = 0x100000000000UL;
static int sizes_used, device;
static struct { size_t address, size; } segments[1 << 20];
int fake_gpu_busy = 0;

size_t fake_gpu_bytes(void) {
    const char *text = getenv("FAKE_GPU_BYTES");
    return text ? strtoull(text, 0, 10) : 80UL << 30;
}

int fake_gpu_major(void) {
    const char *text = getenv("FAKE_GPU_MAJOR");
    return text ? atoi(text) : 8;
}

int fake_gpu_minor(void) {
    const char *text = getenv("FAKE_GPU_MINOR");
    return text ? atoi(text) : 0;
}

int fake_gpu_has_memory(void) { return getenv("FAKE_GPU_HAS_MEMORY") != 0; }

int fake_gpu_owns(const void *p) {
    return fake_gpu_has_memory() && first_backed <= (size_t)p && (size_t)p < next_address;
}

static size_t addresses(size_t size) {
    if (fake_gpu_has_memory() && next_address > 0x7effffffffffUL)
        next_address = first_backed;
    size_t address = next_address;
    next_address += (size + PAGE - 1) / PAGE * PAGE;
    if (fake_gpu_has_memory() &&
        mmap((void *)address, next_address - address, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
        abort();
    return address;
}

static cudaError_t last;

cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return OK; }
cudaError_t cudaGetDevice(int *d) { *d = device; return OK; }
cudaError_t cudaSetDevice(int d) { device = d; return OK; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13020; return OK; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13020; return OK; }
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = OK; return e; }
cudaError_t cudaPeekAtLastError(void) { return last; }
cudaError_t cudaDeviceSynchronize(void) { return OK; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = 0; *b = -5; return OK; }
cudaError_t cudaThreadExchangeStreamCaptureMode(int *m) { return OK; }

cudaError_t cudaStreamIsCapturing(cudaStream_t s, int *status) {
    *status = 0;
    return OK;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, int *status) {
    *status = 0;
    return OK;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int d) { *id = 0; return OK; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return OK; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) { return OK; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
    static size_t next = 0x1000;
    *s = (cudaStream_t)(next += 0x10);
    return OK;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    *e = (cudaEvent_t)8;
    return OK;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return OK; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return OK; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return OK; }
cudaError_t cudaEventQuery(cudaEvent_t e) {
    return fake_gpu_busy ? NOT_READY : OK;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *all) {
    *all = fake_gpu_bytes();
    *unused = *all - taken;
    return OK;
}

cudaError_t cudaMalloc(void **p, size_t size) {
    if (taken + size > fake_gpu_bytes())
        return last = OUT_OF_MEMORY;
    taken += size;
    segments[sizes_used].address = addresses(size);
    segments[sizes_used].size = size;
    *p = (void *)segments[sizes_used++].address;
    return OK;
}

cudaError_t cudaFree(void *p) {
    for (int i = sizes_used - 1; i >= 0; i--)
        if (segments[i].address == (size_t)p) {
            taken -= segments[i].size;
            segments[i] = segments[--sizes_used];
            break;
        }
    return OK;
}

/* The driver's functions, for expandable segments. */
static CUresult nothing(void) { return OK; }

static CUresult reserve(CUdeviceptr *p, size_t size, size_t a, CUdeviceptr at, unsigned long long f) {
    *p = addresses(size);
    return OK;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
                       const void *prop, unsigned long long flags) {
    if (taken + size > fake_gpu_bytes())
        return OUT_OF_MEMORY;
    taken += size;
    *handle = size;
    return OK;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    taken -= handle;
    return OK;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             int *status) {
    *function = !strcmp(name, "cuMemAddressReserve") ? (void *)reserve
              : !strcmp(name, "cuMemCreate")         ? (void *)create
              : !strcmp(name, "cuMemRelease")        ? (void *)release
                                                     : (void *)nothing;
    if (status)
        *status = 0;
    return OK;
}

/* What torch looks up in libcuda.so.1 itself when it starts. */
CUresult cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return OK;
}

/* And in libnvidia-ml.so.1, which is this library under another name: a GPU without links. */
int nvmlInit_v2(void) { return OK; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **gpu) { *gpu = 0; return OK; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned link, int *type) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, void *info) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13020; return OK; }
int nvmlDeviceGetGpuFabricInfoV(void *gpu, void *info) { return 3; }

int nvmlDeviceGetComputeRunningProcesses(void *gpu, unsigned *n, void *processes) {
    *n = 0;
    return OK;
}
