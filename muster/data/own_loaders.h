// What a job does about loaders and samplers that its program made itself, without the Context.
// muster::run sets it; without a job of several ranks nothing happens.
#pragma once

#include <functional>

#include "muster/data/sampler_identity.h"

namespace muster {

// The rules of this thread's job, while it lives.
class OwnLoaders {
 public:
  // Calls `check` when a sampler or stream that the Context did not make begins its first epoch.
  explicit OwnLoaders(std::function<void(const SamplerIdentity&)> check);
  ~OwnLoaders();
  OwnLoaders(const OwnLoaders&) = delete;
  OwnLoaders& operator=(const OwnLoaders&) = delete;

  static void check(const SamplerIdentity& identity);

  // The job has been asked to stop: a loop over an epoch that is left now is gone on with after a
  // resume.
  static void stop_job();
  static bool job_stops();

 private:
  static OwnLoaders*& here();

  std::function<void(const SamplerIdentity&)> check_;
  bool stops_ = false;
  OwnLoaders* before_;
};

}  // namespace muster
