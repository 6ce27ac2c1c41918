// How a piece of work ended on a rank travels as a text, so that all ranks end in the same way:
// none of them waits for another that has thrown.
#include "muster/checkpoint/peers.h"

#include <ATen/ops/from_blob.h>

#include <memory>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/process_group.h"

namespace muster {

namespace {

// How `work` ended.
struct Outcome {
  std::exception_ptr exception;
  std::string text;  // for other ranks: "" if it ended well
};

// The code travels as a letter, so that it is one byte whatever its number.
std::string describe(ErrorCode code, const std::string& message) {
  return cat(static_cast<char>('a' + static_cast<int>(code)), message);
}

// Runs `work` and catches what it throws.
Outcome attempt(const Peers::Work& work) {
  try {
    work();
    return {};
  } catch (...) {
    return {std::current_exception(), told_failure(std::current_exception())};
  }
}

}  // namespace

std::string told_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return describe(error.code(), error.message());
  } catch (const std::exception& error) {
    return describe(ErrorCode::internal, first_line(error));
  } catch (...) {
    return describe(ErrorCode::internal, "something that is no exception was thrown");
  }
}

void fail_as(const std::string& told, int64_t rank) {
  throw Error(static_cast<ErrorCode>(told[0] - 'a'), cat(told.substr(1), " (rank ", rank, ")"));
}

// The functions keep the group alive as long as they are.
Peers::Peers(const ProcessGroup& group) : rank_(group.rank()), size_(group.size()) {
  auto handle = std::make_shared<ProcessGroup>(group);  // copies share the group
  share_bytes_ = [handle](std::string& bytes, int root) {
    handle->broadcast_bytes(bytes, root);
  };
  share_tensor_ = [handle](Tensor tensor, int root) {
    handle->broadcast(std::move(tensor), root);
  };
}

Peers::Peers(int rank, int size, ShareBytes share_bytes, ShareTensor share_tensor)
    : rank_(rank),
      size_(size),
      share_bytes_(std::move(share_bytes)),
      share_tensor_(std::move(share_tensor)) {}

void Peers::share_from(std::string& bytes, int root) const {
  if (size_ > 1)
    share_bytes_(bytes, root);
}

void Peers::share(const Tensor& tensor) const {
  if (size_ == 1 || tensor.numel() == 0)
    return;
  // The content travels as bytes, since no backend moves every dtype.
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  share_tensor_(at::from_blob(tensor.data_ptr(), {bytes}, kByte), 0);
}

// The other ranks wait here for how it ended, so they cannot run ahead of rank 0.
void Peers::on_rank0(const Work& work) const {
  Outcome outcome;
  if (rank_ == 0)
    outcome = attempt(work);
  share_from(outcome.text, 0);
  if (outcome.exception)
    std::rethrow_exception(outcome.exception);
  if (!outcome.text.empty())
    fail_as(outcome.text, 0);
}

// Every rank hears of every other, also when it has failed itself: otherwise a rank would leave
// while others still wait for its word.
void Peers::together(const Work& check) const {
  const Outcome mine = attempt(check);
  std::string first;
  int failed = -1;
  for (const int root : indices_below(size_)) {
    std::string text = root == rank_ ? mine.text : "";
    share_from(text, root);
    if (failed < 0 && !text.empty()) {
      first = text;
      failed = root;
    }
  }
  if (mine.exception)
    std::rethrow_exception(mine.exception);
  if (failed >= 0)
    fail_as(first, failed);
}

}  // namespace muster
