/* driver.h - inner header of the plugin gradwired-cuda.so
 *
 * context.c opens devices, import.c memory of clients, stream.c copies. The driver API alone is used: it is what is
 * there with every driver. No kernel is ever launched.
 */
#ifndef GWD_CUDA_DRIVER_H
#define GWD_CUDA_DRIVER_H

#include <cuda.h>

#include "backend.h"

struct gwd_context {
    CUdevice device;
    CUcontext context; /* the primary one, retained */
};

/* Puts "cuThis: CUDA_ERROR_THAT, words" into text, and gives the status: GW_ERR_NO_MEMORY, GW_ERR_DEVICE where the
 * context is lost, `otherwise` else. */
gw_status_t gwd_cuda_fail(CUresult result, const char *call, gw_status_t otherwise, char *text, size_t text_bytes);

/* import.c, stream.c: parts of the table. */
extern const gwd_backend_t gwd_cuda_memory;
gw_status_t gwd_cuda_stream_new(gwd_context_t *context, gwd_stream_t **stream_out, char *text, size_t text_bytes);
void gwd_cuda_stream_free(gwd_stream_t *stream);
gw_status_t gwd_cuda_copy(gwd_stream_t *stream, void *to, const void *from, uint64_t bytes, char *text,
                          size_t text_bytes);
gw_status_t gwd_cuda_ended(gwd_stream_t *stream, uint64_t *n_out, char *text, size_t text_bytes);

#endif
