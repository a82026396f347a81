/* The public view of the pool's counters, taken at one moment under its lock. */
#include "base.h"

enum tandem_status tandem_stats_get(struct tandem_stats *stats, struct tandem_error *error) {
  int cancel = td_cancel_disable();
  enum tandem_status status = TANDEM_OK;
  td_clear(error);
  if (stats == NULL || stats->struct_size != sizeof *stats) {
    status = td_fail(error, TANDEM_INVALID_ARGUMENT, "stats->struct_size is %zu, expected %zu",
                     stats != NULL ? stats->struct_size : 0, sizeof *stats);
  } else {
    td_pool_stats(stats);
    stats->log_lines_dropped = td_log_dropped();
  }
  td_cancel_restore(cancel);
  return status;
}
