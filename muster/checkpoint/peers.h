// What saving and loading need of the other ranks: rank 0 tells them, and nobody goes on when somebody
// failed. A ProcessGroup converts to it; without one a checkpoint is a single process's affair. Tests give
// their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace muster {

class ProcessGroup;

class Peers {
 public:
  using ShareBytes = std::function<void(std::string& bytes, int root)>;
  using ShareTensor = std::function<void(at::Tensor tensor, int root)>;

  Peers() = default;                 // alone
  Peers(const ProcessGroup& group);  // NOLINT(google-explicit-constructor): a group is what callers have
  Peers(int rank, int size, ShareBytes share_bytes, ShareTensor share_tensor);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Every rank ends with rank 0's bytes. Collective: yes.
  void share(std::string& bytes) const { share_from(bytes, 0); }

  // Every rank ends with rank 0's content of a contiguous tensor on the CPU, in place. Collective: yes.
  void share(const at::Tensor& tensor) const;

  // Runs `work` on rank 0; its exception is thrown there and, as Error, on all other ranks. Collective: yes.
  void on_rank0(const std::function<void()>& work) const;

  // Runs `check` on every rank; when it throws on any, all throw: the ranks where it did their own exception,
  // the others an Error with the first failing rank's message. Collective: yes.
  void together(const std::function<void()>& check) const;

 private:
  void share_from(std::string& bytes, int root) const;

  int rank_ = 0;
  int size_ = 1;
  ShareBytes share_bytes_;
  ShareTensor share_tensor_;
};

}  // namespace muster
