/* Lists the vendors of an installed tandem and which of their libraries are there.
 * cc vendors.c $(pkg-config --cflags --libs tandem) -o vendors */
#include <stdio.h>
#include <tandem/tandem.h>

int main(void) {
  printf("tandem %s\n", tandem_version());
  for (size_t i = 0; i < tandem_vendor_count(); i++) {
    struct tandem_vendor_info info = {.struct_size = sizeof(info)};
    if (tandem_vendor_get_info(i, &info, NULL) != TANDEM_OK)
      return 1;
    printf("%s: %s\n", info.name, info.available ? info.version : info.reason);
  }
  return 0;
}
