/* Turns slots.tsv into rows for the stand-in libnvinfer: make_slots slots.tsv VERSION... > slots.h
 *
 * Only the library's own classes (V...) of the versions asked for; nvinfer.c finds its slots by name in them,
 * so a wrong number can come from the file only. TESTS ONLY.
 */
#include <stdio.h>
#include <string.h>

static void write_text(const char *text) {
  putchar('"');
  for (; *text; text++) {
    if (*text == '"' || *text == '\\')
      putchar('\\');
    putchar(*text);
  }
  putchar('"');
}

int main(int argc, char **argv) {
  FILE *file = argc > 2 ? fopen(argv[1], "r") : NULL;
  if (!file) {
    fprintf(stderr, "make_slots: expected slots.tsv and versions\n");
    return 1;
  }
  int rows = 0;
  char line[4096];
  puts("/* Made from slots.tsv by make_slots.c. */\nstatic const struct slot_row slot_rows[] = {");
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    char *fields[5] = {line};
    for (int i = 1; i < 5; i++) {
      char *tab = fields[i - 1] ? strchr(fields[i - 1], '\t') : NULL;
      if (tab)
        *tab = '\0';
      fields[i] = tab ? tab + 1 : NULL;
    }
    if (!fields[4] || fields[1][0] != 'V')
      continue;
    for (int i = 2; i < argc; i++) {
      if (strcmp(argv[i], fields[0]) != 0)
        continue;
      printf("    {");
      write_text(fields[0]);
      putchar(',');
      write_text(fields[1]);
      printf(",%s,", fields[2]);
      write_text(fields[3]);
      putchar(',');
      write_text(fields[4]);
      puts("},");
      rows++;
    }
  }
  puts("};");
  fclose(file);
  if (rows == 0)
    fprintf(stderr, "make_slots: no rows of these versions in %s\n", argv[1]);
  return rows == 0;
}
