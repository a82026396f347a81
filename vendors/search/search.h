/* Where vendors look for their libraries: the places and their order, the same for all.
 *
 *   1. what the user named in a variable: used or an error     td_search_variable, td_search_named
 *   2. the libraries that the process has mapped               td_search_mapped
 *   3. folders of Python packages, nearest first               td_search_packages
 *   4. the system's loader, by the vendor's names              td_search_library
 *
 * What the files are called, in which of two forms a library is preferred and which versions will do, is each
 * vendor's own. A struct td_search is one search, on one thread; it holds nothing that has to be given back.
 */
#ifndef TANDEM_VENDORS_SEARCH_SEARCH_H
#define TANDEM_VENDORS_SEARCH_SEARCH_H

#include <tandem/vendor.h>

struct td_search {
  const struct tandem_host *host;
  /* Whether `library`, just opened, will do: false with an `error` that begins "it is", and the search goes
   * on. NULL: whatever opens will do. */
  bool (*accept)(struct td_search *search, struct tandem_error *error);
  const char *variable, *named; /* by td_search_variable; borrowed from the environment */
  void *library;                /* the last one opened; the process's */
  char path[512];               /* where it lies */
  struct tandem_error broken;   /* the first library that is there and will not do */
};

/* Looks at a place; true ends the search: `library` will do. `path` is the caller's for the call. */
typedef bool (*td_search_fn)(struct td_search *search, const char *path);

/* Opens a file, or a name for the loader. */
bool td_search_library(struct td_search *search, const char *name);
/* Opens files `stem`, "<stem>.1.2" of <folder>/<below>, the newest that will do. */
bool td_search_folder(struct td_search *search, const char *folder, const char *below, const char *stem);

/* The value of the first of `variables` (NULL ends them) that is set, kept as `named`; NULL: none is. */
const char *td_search_variable(struct td_search *search, const char *const *variables);
/* `named` is a file, a folder that `visit` looks into, or a name for the loader. */
bool td_search_named(struct td_search *search, td_search_fn visit);
/* Visits the mapped files that are called `stem` or "<stem>.1.2"; NULL: the folders of packages that mapped
 * files come from. */
bool td_search_mapped(struct td_search *search, const char *stem, td_search_fn visit);
/* Visits each folder of Python packages: those of TANDEM_PYTHON_PATH, which is the sys.path of a Python that
 * imported tandem, of mapped files, of VIRTUAL_ENV, CONDA_PREFIX, the folders of PYTHONPATH, those of the
 * running program's prefix, ~/.local, /usr/local, /usr. Some come twice. */
bool td_search_packages(struct td_search *search, td_search_fn visit);

/* The error of a search that found nothing: UNSUPPORTED where a library that is there was not accepted, else
 * UNAVAILABLE. `what` was looked for ("OpenVINO"), in `files`; `remedy` mends it. */
enum tandem_status td_search_fail(const struct td_search *search, const char *what, const char *files,
                                  const char *remedy, struct tandem_error *error);

/* Writes a function's address, or NULL, to the pointer at `function`; whether it has one. */
bool td_search_symbol(const struct td_search *search, const char *name, void *function);

#endif
