/* A SIGALRM ends the program: signal handlers may not print with stdio, so the name is kept ready. Under a
 * thread sanitizer, which runs some ten times slower, bounds are longer by that factor. */
#include "bound.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOWNESS = 5 };
#else
enum { SLOWNESS = 1 };
#endif

#if defined(__SANITIZE_THREAD__)
/* Tests fork while threads stand at gates; the children start threads of their own. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "die_after_fork=0";
}
#endif

#if defined(TD_COVERAGE)
void __gcov_dump(void);
#endif

static char message[256];

static void end_program(int signal_number) {
  (void)signal_number;
  ssize_t written = write(STDERR_FILENO, message, strlen(message));
  _exit(written < 0 ? 3 : 1);
}

void bound_set(const char *test, unsigned seconds) {
  alarm(0);
  if (!seconds)
    return;
  struct sigaction action = {.sa_handler = end_program};
  sigaction(SIGALRM, &action, NULL);
  snprintf(message, sizeof message, "FAILED: %s hangs: not done after %u s\n", test, seconds * SLOWNESS);
  alarm(seconds * SLOWNESS);
}

void bound_end_child(int status) {
#if defined(TD_COVERAGE)
  __gcov_dump();
#endif
  _exit(status);
}
