/* A rank in C: which GPUs there are, who this process is, and what it does, for `muster top`.
 *
 *   cc rank.c -I$PREFIX/include $PREFIX/lib/libmuster.so.0 -o rank
 *   muster run -n 2 ./rank
 */
#include <muster/c_api.h>
#include <stdio.h>
#include <time.h>

enum { STEPS = 20 };

/* Prints an answer, or the error. Returns whether there was one. */
static int show(const char* what, int code, char* text) {
  if (code != MUSTER_OK)
    fprintf(stderr, "%s: %s\n", what, muster_last_error());
  else
    printf("%s: %s\n", what, text);
  muster_free(text);
  return code != MUSTER_OK;
}

static void work(void) {
  const struct timespec some_time = {0, 2000000};
  nanosleep(&some_time, NULL);
}

int main(void) {
  char* text = NULL;
  int code = muster_devices(NULL, &text);
  int failed = show("devices", code, text);
  code = muster_plan("{\"n\": 2, \"surplus\": \"share\"}", &text);
  failed |= show("plan", code, text);
  code = muster_rank(&text);
  failed |= show("rank", code, text);
  muster_activity_open(NULL);
  muster_catch_stops();
  for (int step = 0; step < STEPS && muster_stop_signal() == 0; ++step) {
    muster_span span;
    muster_span_begin(&span, "work", MUSTER_COMPUTE);
    work();
    muster_span_end(&span);
    muster_note_step(step);
  }
  muster_activity_close();
  if (muster_stop_signal() != 0)
    return MUSTER_STOPPED;
  return failed;
}
