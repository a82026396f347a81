/* What tandem knows of a vendor by its name: the demo and the doctor find libraries as the vendor itself
 * does. */
#include "cli.h"

#include <string.h>

enum tandem_status td_vendor_lookup(const char *name, struct tandem_vendor_info *info,
                                    struct tandem_error *error) {
  for (size_t i = 0; i < tandem_vendor_count(); i++) {
    *info = (struct tandem_vendor_info){.struct_size = sizeof *info};
    enum tandem_status status = tandem_vendor_get_info(i, info, error);
    if (status != TANDEM_OK)
      return status;
    if (strcmp(info->name, name) == 0)
      return TANDEM_OK;
  }
  *info = (struct tandem_vendor_info){.struct_size = sizeof *info};
  return td_refuse(error, TANDEM_NOT_FOUND, "this build of tandem has no vendor '%s'", name);
}
