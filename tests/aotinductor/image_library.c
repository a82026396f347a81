/* Like an engine's compiled library: its entry point calls a tensor function that no library is named for. */
int aoti_torch_answer(int question);
int helper(int question);
int AOTInductorAsk(int question);

/* Defined here, and bound to here whatever else the process calls so. */
int helper(int question) {
  return 10 * question;
}

int AOTInductorAsk(int question) {
  return aoti_torch_answer(helper(question));
}
