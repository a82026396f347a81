/* Loads one program's method "forward" twice: two loads, one engine. Usage: two_loads PROGRAM.pte */
#include <stdio.h>
#include <tandem/program.h>

int main(int argc, char **argv) {
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .path = argc > 1 ? argv[1] : ""};
  struct tandem_program *program = NULL;
  struct tandem_method *left = NULL, *right = NULL;
  struct tandem_stats stats = {.struct_size = sizeof(stats)};
  struct tandem_error error;
  int failed = tandem_program_create(&desc, &program, &error) ||
               tandem_method_create(program, "forward", NULL, 0, &left, &error) ||
               tandem_method_create(program, "forward", NULL, 0, &right, &error) ||
               tandem_stats_get(&stats, &error);
  if (failed)
    fprintf(stderr, "two_loads: %s\n", error.message);
  else
    printf("%d loads, %d engines, %d builds\n", (int)stats.loads, (int)stats.engines, (int)stats.builds);
  tandem_method_destroy(right);
  tandem_method_destroy(left);
  tandem_program_destroy(program);
  return failed;
}
