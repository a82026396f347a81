/* The `tandem` command: finds the command asked for and hands the rest of the line to it.
 *
 * Commands beginning with '_' are for the demo's own children and for tests; help does not list them.
 */
#include "cli.h"

#include <locale.h>
#include <string.h>

static const char help[] = "tandem: loads of the same engine share one engine\n"
                           "\n"
                           "usage: tandem COMMAND [ARGUMENTS]\n"
                           "\n"
                           "  demo               make a policy and load it twice, without sharing and with\n"
                           "  run PROGRAM        load a .pte program, run it, tell what each load cost\n"
                           "  inspect PROGRAM    tell what a .pte program holds\n"
                           "  doctor             tell which runtimes and vendor libraries are found\n"
                           "\n"
                           "  --help, --version; 'tandem COMMAND --help' tells a command's options\n"
                           "\n"
                           "exit status: 0 done, 1 failed, 2 called wrongly\n";

static const struct {
  const char *name;
  int (*run)(int count, char **arguments);
} commands[] = {
    {"demo", td_demo_command},        {"run", td_run_command},        {"inspect", td_inspect_command},
    {"doctor", td_doctor_command},    {"_policy", td_policy_command}, {"_constant", td_constant_command},
    {"_measure", td_measure_command},
};

int main(int count, char **arguments) {
  setlocale(LC_CTYPE, "");
  if (count < 2) {
    td_complain("no command given; see 'tandem --help'");
    return TD_EXIT_USAGE;
  }
  const char *name = arguments[1];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "--version") == 0) {
    if (count > 2) {
      td_complain("'%s' is one argument too many; see 'tandem --help'", arguments[2]);
      return TD_EXIT_USAGE;
    }
    if (name[2] == 'v')
      printf("tandem %s\n", tandem_version());
    else
      fputs(help, stdout);
    return td_end_output() ? TD_EXIT_DONE : TD_EXIT_FAILED;
  }
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (strcmp(commands[i].name, name) == 0)
      return commands[i].run(count - 2, arguments + 2);
  td_complain("there is no %s '%s'; see 'tandem --help'", name[0] == '-' ? "option" : "command", name);
  return TD_EXIT_USAGE;
}
