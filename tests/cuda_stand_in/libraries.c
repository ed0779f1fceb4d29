/* cuBLAS, cuDNN and cuFFT without a GPU, as far as torch asks them for a number: of a workspace, 0.
 * What only returns a status is in stubs.c, which build.py writes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status;
typedef void *handle;

/* cuBLAS */
status cublasGetMathMode(handle h, int *mode) { *mode = 0; return 0; }
status cublasGetPointerMode_v2(handle h, int *mode) { *mode = 0; return 0; }

struct heuristic { uint64_t algorithm[8]; size_t workspace; status state; float waves; int rest[4]; };

status cublasLtMatmulAlgoGetHeuristic(handle h, handle op, handle a, handle b, handle c, handle d,
                                      handle preference, int wanted, struct heuristic *found,
                                      int *num_found) {
    memset(found, 0, sizeof(*found));
    *num_found = 1;
    return 0;
}

/* cuDNN */
status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    handle h, int mode, int ops, handle x, handle z, handle y, handle scale, handle activation,
    size_t *size) {
    *size = 0;
    return 0;
}

status cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle h, int mode, int ops, handle x,
                                                         handle y, handle dy, handle dz, handle dx,
                                                         handle scale, handle activation,
                                                         size_t *size) {
    *size = 0;
    return 0;
}

status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle h, int mode, int ops,
                                                            handle activation, handle x,
                                                            size_t *size) {
    *size = 0;
    return 0;
}

status cudnnGetCTCLossWorkspaceSize(handle h, handle probs, handle gradients, const int *labels,
                                    const int *lengths, const int *inputs, int algorithm, handle ctc,
                                    size_t *size) {
    *size = 0;
    return 0;
}

status cudnnGetCTCLossWorkspaceSize_v8(handle h, int algorithm, handle ctc, handle probs,
                                       handle gradients, size_t *size) {
    *size = 0;
    return 0;
}

status cudnnDropoutGetStatesSize(handle h, size_t *size) { *size = 512; return 0; }
status cudnnGetStream(handle h, handle *stream) { *stream = 0; return 0; }

/* cuDNN's graphs: one engine for everything, without a workspace. */
enum { RESULTS = 202, INT64 = 3, DESCRIPTOR = 15, INT32 = 23 };

status cudnnBackendCreateDescriptor(int type, handle *descriptor) {
    *descriptor = calloc(1, 64);
    return 0;
}

status cudnnBackendDestroyDescriptor(handle descriptor) { free(descriptor); return 0; }

status cudnnBackendGetAttribute(handle descriptor, int name, int type, int64_t wanted,
                                int64_t *num_found, void *found) {
    int is_number = type == INT64 || type == INT32;
    if (num_found)
        *num_found = name == RESULTS || is_number || (type == DESCRIPTOR && wanted == 1);
    if (is_number && wanted > 0 && found)
        memset(found, 0, wanted * (type == INT64 ? 8 : 4));
    return 0;
}

/* cuFFT: a plan is an int. */
status cufftCreate(int *plan) { *plan = 1; return 0; }

status cufftXtMakePlanMany(int plan, int rank, void *n, void *from, long long from_step,
                           long long from_distance, int from_type, void *to, long long to_step,
                           long long to_distance, int to_type, long long batch, size_t *size,
                           int type) {
    *size = 0;
    return 0;
}

/* NVRTC: an empty program. */
status nvrtcGetCUBINSize(handle program, size_t *size) { *size = 1; return 0; }
status nvrtcGetPTXSize(handle program, size_t *size) { *size = 1; return 0; }
status nvrtcGetProgramLogSize(handle program, size_t *size) { *size = 1; return 0; }
status nvrtcGetLoweredName(handle program, const char *expression, const char **name) {
    *name = "kernel";
    return 0;
}
