/* The part of OpenVINO's C interface that tandem calls, declared here so that no OpenVINO header is needed
 * to build. Everything is passed through the C interface of libopenvino_c, whose types are opaque pointers
 * and the few plain structs below; they are the same from 2025.4 to 2026.4.
 */
#ifndef TANDEM_VENDORS_OPENVINO_ABI_H
#define TANDEM_VENDORS_OPENVINO_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Statuses below this one come from the C wrapper itself, which leaves no text of its own for them. */
enum { OV_OK = 0, OV_LAST_STATUS_WITH_TEXT = -13 };

enum ov_element {
  OV_DYNAMIC = 0,
  OV_BOOLEAN = 1,
  OV_BF16 = 2,
  OV_F16 = 3,
  OV_F32 = 4,
  OV_F64 = 5,
  OV_I4 = 6,
  OV_I8 = 7,
  OV_I16 = 8,
  OV_I32 = 9,
  OV_I64 = 10,
  OV_U1 = 11,
  OV_U2 = 12,
  OV_U3 = 13,
  OV_U4 = 14,
  OV_U6 = 15,
  OV_U8 = 16,
  OV_U16 = 17,
  OV_U32 = 18,
  OV_U64 = 19,
  OV_NF4 = 20,
  OV_F8E4M3 = 21,
  OV_F8E5M2 = 22,
  OV_STRING = 23,
  OV_F4E2M1 = 24,
  OV_F8E8M0 = 25,
};

struct ov_version {
  const char *build_number; /* "2026.4.1-22982-e213a147257-releases/2026/4" */
  const char *description;
};

struct ov_shape {
  int64_t rank;
  int64_t *dims;
};

/* An unbounded dimension has max -1. A rank is a dimension too. */
struct ov_dimension {
  int64_t min;
  int64_t max;
};

struct ov_partial_shape {
  struct ov_dimension rank;
  struct ov_dimension *dims;
};

struct ov_devices {
  char **names;
  size_t count;
};

struct ov_core;
struct ov_compiled_model;
struct ov_infer_request;
struct ov_tensor;
struct ov_port;

/* X(member, symbol, result, parameters) */
#define TD_OPENVINO_CALLS(X)                                                                                 \
  X(get_version, ov_get_openvino_version, int, (struct ov_version *))                                        \
  X(version_free, ov_version_free, void, (struct ov_version *))                                              \
  X(last_error, ov_get_last_err_msg, const char *, (void))                                                   \
  X(text_free, ov_free, void, (const char *))                                                                \
  X(core_create, ov_core_create, int, (struct ov_core **))                                                   \
  X(core_free, ov_core_free, void, (struct ov_core *))                                                       \
  X(core_set, ov_core_set_property, int, (const struct ov_core *, const char *, ...))                        \
  X(core_devices, ov_core_get_available_devices, int, (const struct ov_core *, struct ov_devices *))         \
  X(devices_free, ov_available_devices_free, void, (struct ov_devices *))                                    \
  X(core_import, ov_core_import_model, int,                                                                  \
    (const struct ov_core *, const char *, size_t, const char *, struct ov_compiled_model **))               \
  X(model_free, ov_compiled_model_free, void, (struct ov_compiled_model *))                                  \
  X(model_get, ov_compiled_model_get_property, int,                                                          \
    (const struct ov_compiled_model *, const char *, char **))                                               \
  X(input_count, ov_compiled_model_inputs_size, int, (const struct ov_compiled_model *, size_t *))           \
  X(output_count, ov_compiled_model_outputs_size, int, (const struct ov_compiled_model *, size_t *))         \
  X(input_port, ov_compiled_model_input_by_index, int,                                                       \
    (const struct ov_compiled_model *, size_t, struct ov_port **))                                           \
  X(output_port, ov_compiled_model_output_by_index, int,                                                     \
    (const struct ov_compiled_model *, size_t, struct ov_port **))                                           \
  X(port_free, ov_output_const_port_free, void, (struct ov_port *))                                          \
  X(port_name, ov_port_get_any_name, int, (const struct ov_port *, char **))                                 \
  X(port_element, ov_port_get_element_type, int, (const struct ov_port *, enum ov_element *))                \
  X(port_shape, ov_port_get_partial_shape, int, (const struct ov_port *, struct ov_partial_shape *))         \
  X(partial_shape_free, ov_partial_shape_free, void, (struct ov_partial_shape *))                            \
  X(request_create, ov_compiled_model_create_infer_request, int,                                             \
    (const struct ov_compiled_model *, struct ov_infer_request **))                                          \
  X(request_free, ov_infer_request_free, void, (struct ov_infer_request *))                                  \
  X(request_infer, ov_infer_request_infer, int, (struct ov_infer_request *))                                 \
  X(request_set_input, ov_infer_request_set_input_tensor_by_index, int,                                      \
    (struct ov_infer_request *, size_t, const struct ov_tensor *))                                           \
  X(request_set_output, ov_infer_request_set_output_tensor_by_index, int,                                    \
    (struct ov_infer_request *, size_t, const struct ov_tensor *))                                           \
  X(request_get_output, ov_infer_request_get_output_tensor_by_index, int,                                    \
    (const struct ov_infer_request *, size_t, struct ov_tensor **))                                          \
  X(tensor_wrap, ov_tensor_create_from_host_ptr, int,                                                        \
    (enum ov_element, struct ov_shape, void *, struct ov_tensor **))                                         \
  X(tensor_free, ov_tensor_free, void, (struct ov_tensor *))                                                 \
  X(tensor_shape, ov_tensor_get_shape, int, (const struct ov_tensor *, struct ov_shape *))                   \
  X(tensor_data, ov_tensor_data, int, (const struct ov_tensor *, void **))                                   \
  X(shape_free, ov_shape_free, int, (struct ov_shape *))

struct ov_api {
#define TD_OPENVINO_MEMBER(member, symbol, result, parameters) result(*member) parameters;
  TD_OPENVINO_CALLS(TD_OPENVINO_MEMBER)
#undef TD_OPENVINO_MEMBER
};

#endif
