/* The fake vendor under the conformance suite: as it is, and as a vendor that keeps the engine bytes, honours
 * a budget and survives fork. Afterwards the fake vendor tells whether tandem broke a promise of vendor.h. */
#include "conformance.h"

#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

static bool expect(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output) {
  const struct fake_model *model = user;
  size_t count = (size_t)rows;
  for (int32_t i = 1; i < model->rank; i++)
    count *= (size_t)model->max[i];
  float state = 0;
  for (size_t i = 0; i + 1 < steps; i++)
    if (model->flags & FAKE_MODEL_STATEFUL)
      state += inputs[i][0];
  fake_expect(model, inputs[steps - 1], count, state, output);
  return true;
}

static struct conformance_model describe_model(const char *name, struct fake_model *model) {
  struct conformance_model described = {.name = name,
                                        .rank = model->rank,
                                        .rows_min = model->min[0],
                                        .rows_max = model->max[0],
                                        .outputs_per_row = 1,
                                        .expect = expect,
                                        .user = model};
  for (int32_t i = 0; i < model->rank; i++)
    described.shape[i] = model->max[i];
  for (int32_t i = 1; i < model->rank; i++)
    described.outputs_per_row *= (size_t)model->max[i];
  described.payload = fake_payload_create(model, &described.payload_size);
  return described;
}

static int run(const char *name, const char *backend, uint32_t flags) {
  struct fake_vendor *fake = fake_vendor_create(name, backend, flags);
  if (!fake)
    return 1;
  struct fake_model models[] = {
      {.rank = 2, .min = {4, 6}, .max = {4, 6}, .cost = 1000, .seed = 1},
      {.rank = 2, .min = {4, 6}, .max = {4, 6}, .cost = 1000, .seed = 1},
      {.rank = 3, .min = {1, 3, 5}, .max = {8, 3, 5}, .cost = 2000, .streamable_size = 512, .seed = 2},
      {.rank = 1, .min = {5}, .max = {5}, .seed = 3, .flags = FAKE_MODEL_STATEFUL}};
  models[1].flags = FAKE_MODEL_LAST_NEGATED;
  struct conformance_model described[] = {
      describe_model("plain", &models[0]), describe_model("twin", &models[1]),
      describe_model("dynamic", &models[2]), describe_model("stateful", &models[3])};
  struct conformance conformance = {.vendor = fake_vendor_table(fake),
                                    .plain = &described[0],
                                    .twin = &described[1],
                                    .dynamic = &described[2],
                                    .stateful = &described[3],
                                    .bounds_known = true,
                                    .rounds = 50};
  int failed = conformance_run(&conformance);
  const char *what = "";
  if (fake_violations(fake, &what)) {
    fprintf(stderr, "%s: tandem broke a promise to its vendor: %s\n", name, what);
    failed++;
  }
  if (fake_live_engines(fake) || fake_live_contexts(fake) || fake_live_payloads(fake) ||
      fake_memory_used(fake)) {
    fprintf(stderr, "%s: engines, contexts, payloads or memory were left behind\n", name);
    failed++;
  }
  for (size_t i = 0; i < sizeof described / sizeof *described; i++)
    free((void *)(uintptr_t)described[i].payload);
  return failed;
}

int main(void) {
  int failed = run("fake", "FakeBackend", 0);
  failed +=
      run("fake-keeps", "FakeKeepsBackend", TANDEM_VENDOR_KEEPS_ENGINE_BYTES | TANDEM_VENDOR_SURVIVES_FORK);
  failed += run("fake-budget", "FakeBudgetBackend", TANDEM_VENDOR_HAS_BUDGET);
  return failed ? 1 : 0;
}
