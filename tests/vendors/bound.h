/* Bounds on what a test may wait for: a hang ends the program with the test's name, not with a timeout of the
 * whole program. */
#ifndef TANDEM_TESTS_BOUND_H
#define TANDEM_TESTS_BOUND_H

/* From now on the calling test has `seconds`; the next call replaces the bound, 0 takes it away. */
void bound_set(const char *test, unsigned seconds);
/* Ends a forked child without exit handlers; counts of covered lines are kept. */
_Noreturn void bound_end_child(int status);

#define BOUND(seconds) bound_set(__func__, seconds)

#endif
