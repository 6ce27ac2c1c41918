// The rules of the job that runs on this thread, which loaders find without being given them. They
// nest: the destructor puts back the ones before.
#include "muster/data/own_loaders.h"

#include <utility>

namespace muster {

OwnLoaders::OwnLoaders(SamplerCheck check, std::function<void(const StreamEnd&)> check_end)
    : check_(std::move(check)),
      check_end_(std::move(check_end)),
      before_(std::exchange(here(), this)) {}

OwnLoaders::~OwnLoaders() {
  here() = before_;
}

// Nothing is checked without rules, since there is no job whose ranks could differ.
void OwnLoaders::check(const SamplerIdentity& identity) {
  if (here() != nullptr)
    here()->check_(identity);
}

int64_t OwnLoaders::number_stream(int64_t ranks) {
  return here() == nullptr ? 0 : ++here()->streams_[ranks];
}

void OwnLoaders::check_end(const StreamEnd& end) {
  if (here() != nullptr && here()->check_end_)
    here()->check_end_(end);
}

void OwnLoaders::stop_job() {
  if (here() != nullptr)
    here()->stops_ = true;
}

bool OwnLoaders::job_stops() {
  return here() != nullptr && here()->stops_;
}

// Each thread has its own rules; a thread that a job starts sees none of the job's.
OwnLoaders*& OwnLoaders::here() {
  thread_local OwnLoaders* rules = nullptr;
  return rules;
}

}  // namespace muster
