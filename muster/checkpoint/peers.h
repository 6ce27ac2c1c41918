// Saving and loading need this from other ranks: rank 0's data, and a common end if one rank fails.
// A ProcessGroup converts to it; without one, a checkpoint concerns only this process. Tests supply
// their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "muster/base/tensors.h"

namespace muster {

class ProcessGroup;

// How an exception is told to other ranks: a letter for its code, and its message.
std::string told_failure(const std::exception_ptr& failure);
// Throws what `rank` has told.
[[noreturn]] void fail_as(const std::string& told, int64_t rank);

class Peers {
 public:
  using ShareBytes = std::function<void(std::string& bytes, int root)>;
  using Work = std::function<void()>;
  using ShareTensor = std::function<void(Tensor tensor, int root)>;

  Peers() = default;  // a single process
  Peers(const ProcessGroup&
            group);  // NOLINT(google-explicit-constructor): a group is what callers have
  Peers(int rank, int size, ShareBytes share_bytes, ShareTensor share_tensor);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Gives every rank rank 0's bytes. Collective: yes.
  void share(std::string& bytes) const { share_from(bytes, 0); }

  // Gives every rank rank 0's content of a contiguous CPU tensor, in place. Collective: yes.
  void share(const Tensor& tensor) const;

  // Runs `work` on rank 0; its exception is rethrown there and, as Error, on all other ranks.
  // Collective: yes.
  void on_rank0(const Work& work) const;

  // Runs `check` on every rank. If it throws on any rank, all ranks throw: failing ranks their own
  // exception, the others an Error with the first failing rank's message. Collective: yes.
  void together(const Work& check) const;

 private:
  void share_from(std::string& bytes, int root) const;

  int rank_ = 0;
  int size_ = 1;
  ShareBytes share_bytes_;
  ShareTensor share_tensor_;
};

}  // namespace muster
