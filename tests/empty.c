/* Keeps the archive valid while it has no other source. */
typedef int td_empty;
