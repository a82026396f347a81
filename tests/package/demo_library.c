/* The demo vendor of the adapter's tests as a library that a Python process opens: it registers with the
 * libtandem of that process, for the demo programs of tests/data/pte. */
#include "demo_vendor.h"

TANDEM_API enum tandem_status demo_register(struct tandem_error *error);

enum tandem_status demo_register(struct tandem_error *error) {
  (void)data_path; /* of the C tests */
  return tandem_vendor_register(&demo_vendor, error);
}
