// What a job does about loaders and samplers that its program made itself, without the Context.
// muster::run sets it; without a job of several ranks nothing happens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "muster/base/no_copy.h"
#include "muster/data/sampler_identity.h"

namespace muster {

// What a rank has read of a stream, or of a data set, when its training loop over an epoch ends. Of
// a loop over steps() the end is known as it begins.
struct StreamEnd {
  int64_t stream = 0;  // which of the job's, as they began
  int64_t places = 0;  // that the program has set in it: an epoch may be read again, in part
  int64_t epoch = 0;
  int64_t batches = 0;      // of a data set: steps
  int64_t ranks = 1;        // that the stream is divided over
  bool of_dataset = false;  // `places` are the loops over it
  bool of_steps = false;    // `places` are such loops, and `batches` is the step that ends it
};

// The rules of this thread's job, while it lives.
class OwnLoaders : NoCopy {
 public:
  // Calls `check` when a sampler or stream that the Context did not make begins its first epoch,
  // and `check_end` at the ends of loops over an epoch, and as loops over steps() begin.
  explicit OwnLoaders(SamplerCheck check, std::function<void(const StreamEnd&)> check_end = {});
  ~OwnLoaders();

  static void check(const SamplerIdentity& identity);

  // The number of the next stream or loader that is trained on, among those divided over so many
  // ranks: alike on all ranks, whatever loaders of their own some have. 0 without rules.
  static int64_t number_stream(int64_t ranks);
  static void check_end(const StreamEnd& end);

  // The job has been asked to stop: a loop over an epoch that is left now is gone on with after a
  // resume.
  static void stop_job();
  static bool job_stops();

 private:
  static OwnLoaders*& here();

  SamplerCheck check_;
  std::function<void(const StreamEnd&)> check_end_;
  std::map<int64_t, int64_t> streams_;  // by the ranks that they are divided over
  bool stops_ = false;
  OwnLoaders* before_;
};

}  // namespace muster
