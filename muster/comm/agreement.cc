#include "muster/comm/agreement.h"

#include <algorithm>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Between two looks at what others published. They answer within a second of being stuck, so this is not hot.
constexpr std::chrono::milliseconds kLook{2};
constexpr std::chrono::milliseconds kLongestLook{100};

}  // namespace

Agreement::Agreement(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                     std::chrono::milliseconds timeout, bool every_call)
    : store_(std::move(store)), rank_(rank), size_(size), timeout_(timeout), every_call_(every_call) {}

std::string Agreement::key(int64_t sequence, int rank) const {
  return cat("call/", sequence, "/", rank);
}

void Agreement::publish(int64_t sequence, const std::string& signature) {
  if (published_ == sequence) return;
  store_->set(key(sequence, rank_), signature);
  published_ = sequence;
}

void Agreement::compare(int64_t sequence, const std::string& mine, int other) {
  const std::string theirs = store_->get_to_str(key(sequence, other));
  if (theirs == mine) return;
  throw Error(ErrorCode::invalid_argument,
              cat("collective #", sequence, ": expected the same call on every rank, got '", mine,
                  "' on rank ", rank_, " and '", theirs, "' on rank ", other,
                  "; make all ranks issue the same operations in the same order"));
}

void Agreement::before(int64_t sequence, const std::string& signature) {
  const std::lock_guard lock(mutex_);
  if (!every_call_ && known_.contains(signature)) return;
  publish(sequence, signature);
  const Deadline deadline(timeout_);
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    auto pause = kLook;
    while (!store_->check({key(sequence, other)})) {
      if (deadline.passed()) {
        throw Error(ErrorCode::timeout,
                    cat("collective #", sequence, " ('", signature, "'): waited ", timeout_.count(),
                        " ms on rank ", rank_, "; missing rank(s) ", join(absent(sequence), ", "),
                        "; see whether they ended, or are busy elsewhere"));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestLook);
    }
    compare(sequence, signature, other);
  }
  known_.insert(signature);
}

void Agreement::look_again(int64_t sequence, const std::string& signature) {
  const std::lock_guard lock(mutex_);
  publish(sequence, signature);
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && store_->check({key(sequence, other)})) compare(sequence, signature, other);
  }
}

std::vector<int> Agreement::absent(int64_t sequence) {
  std::vector<int> missing;
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ && !store_->check({key(sequence, other)})) missing.push_back(other);
  }
  return missing;
}

}  // namespace muster
