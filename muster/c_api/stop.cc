// Requests to stop.
#include "muster/c_api.h"
#include "muster/supervise/stop_signals.h"

extern "C" {

void muster_catch_stops(void) {
  muster::remember_stop_signals();
}

int muster_stop_signal(void) {
  return muster::stop_signal();
}

void muster_set_stop_signal(int signal) {
  muster::set_stop_signal(signal);
}

void muster_release_stops(void) {
  muster::forget_stop_signals();
}

}  // extern "C"
