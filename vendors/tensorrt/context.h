/* What the sources of a context share: the context of a load, its tensors, and the run under way.
 *
 * bindings.c fills it, shapes.c, tensors.c and run.c use it in a run, context.c makes and ends it. One thread
 * at a time is in a context: tandem sees to that. Every function here is called between td_cuda_enter and
 * td_cuda_leave.
 */
#ifndef TANDEM_VENDORS_TENSORRT_CONTEXT_H
#define TANDEM_VENDORS_TENSORRT_CONTEXT_H

#include "tensorrt.h"

struct td_trt_tensor {
  char *name; /* owned */
  bool output;
  bool on_host; /* a shape tensor */
  bool dynamic; /* its engine shape has -1 */
  bool late;    /* an output whose shape only the run tells */
  bool aliased; /* an input that is updated in place, or the output that does it */
  size_t input; /* of an aliased output */
  bool same;    /* which has the input's shape in every run: nobody else says that it may differ */
  size_t element;
  struct td_trt_dims dims; /* as the library knows them; rank -1: not told yet */
  void *bound;             /* address that the library knows; NULL: none */
  void *host;              /* owned: values of an on_host tensor */
  size_t host_size;
  struct td_cuda_tensor memory; /* of an aliased output the address is the input's */
  struct tandem_tensor *given;  /* the caller's output in the run under way; NULL: left out */
};

struct td_trt_allocator {
  struct td_trt_output_allocator base; /* first: the library has its address */
  struct td_trt_context *context;
  size_t tensor;
  struct td_trt_dims dims; /* rank -1: not told in this run */
  int32_t code;            /* of the driver */
};

struct td_trt_bound {
  int64_t min[TD_TRT_MAX_RANK], max[TD_TRT_MAX_RANK];
};

struct td_trt_context {
  struct td_trt_engine *engine;        /* shared */
  struct td_cuda_context *cuda;        /* the engine's */
  void *trt;                           /* owned, an IExecutionContext */
  struct tandem_io *ios;               /* owned, as tensors */
  struct td_trt_tensor *tensors;       /* owned: inputs, then outputs */
  struct td_trt_allocator *allocators; /* owned, as outputs */
  struct td_trt_bound *bounds;         /* owned: of each profile, of each input */
  size_t input_count, output_count, tensor_count, alias_count;
  int32_t profile; /* the one in use */
  bool any_profile;
  bool settled;        /* the library knows the shapes and has inferred those of the outputs */
  bool warm;           /* a run with these shapes has been done */
  bool waits;          /* an output is known on the host only after the run */
  bool leases;         /* the engine needs scratch for some shape, and this load leases it */
  size_t scratch_size; /* for the shapes in use */
  uint64_t scratch_address;
  size_t scratch_told; /* with scratch_address */
  struct td_scratch scratch;
  struct td_graphs *graphs;
  uint64_t *key; /* owned: room for a graph's key */
  struct td_flight flight;
};

struct td_trt_run {
  struct td_trt_context *self;
  struct td_run cuda;
  bool reshaped; /* a shape tensor has other values than the library knows */
};

/* ---------------------------------------------------------------- bindings.c */

/* Fills tensors, ios, bounds and aliases. What was filled before a failure goes with the context. */
enum tandem_status td_trt_read_bindings(struct td_trt_context *self, const struct td_trt_payload *payload,
                                        struct tandem_error *error);

/* ---------------------------------------------------------------- shapes.c */

/* "[1, 8]", cut where the text is full. */
void td_trt_dims_write(const struct td_trt_dims *dims, char *text, size_t size);
bool td_trt_dims_same(const struct td_trt_dims *a, const struct td_trt_dims *b);
/* False when the bytes do not fit in size_t, or a dimension is not known. */
bool td_trt_dims_bytes(const struct td_trt_dims *dims, size_t element, size_t *bytes);
/* After td_trt_take_input of every input. Then the outputs' dims are those of this run, but for late ones. */
enum tandem_status td_trt_settle_shapes(struct td_trt_run *run);
/* The library may have half of what it was told: the next run tells it everything. */
void td_trt_forget_told(struct td_trt_context *self);

/* ---------------------------------------------------------------- tensors.c */

/* What the caller gives, and the address that the engine gets for it. */
enum tandem_status td_trt_take_input(struct td_trt_run *run, size_t index);
enum tandem_status td_trt_take_output(struct td_trt_run *run, size_t index);
int32_t td_trt_copy_inputs(struct td_trt_run *run);
/* Brings an output to where the caller wants it; what lives on the host follows when the run is done. */
enum tandem_status td_trt_copy_output(struct td_trt_run *run, size_t index);
/* Shape tensors that the library has written on the host. */
enum tandem_status td_trt_hand_out_values(struct td_trt_run *run);

/* ---------------------------------------------------------------- run.c */

/* The library said no. Its own lines have the reason, unless the device is lost: then no call can succeed. */
enum tandem_status td_trt_refuse(struct td_trt_run *run, enum tandem_status status, const char *step);

#endif
