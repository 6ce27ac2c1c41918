// Lets c10d::Reducer call a Hook.
#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <map>
#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/ddp/hooks.h"
#include "muster/ddp/trained_parameters.h"

namespace muster {

// The future that the Reducer gets is complete at once and holds the bucket's number. The hook's
// result is awaited when the Reducer asks for it, at the end of the backward, in the backward's
// thread. There a hook may call the group, which a callback in a backend's thread must not do.
//
// A backward on a GPU runs on the streams of its forward, and ends on its caller's. All of a hook
// runs on the one where the bucket was full: what the hook has made there, it also uses and lets go
// there.
class HookAdapter : public c10d::CommHookInterface {
 public:
  HookAdapter(Hook hook, ProcessGroup group, const TrainedParameters& parameters);

  FuturePtr runHook(c10d::GradBucket& bucket) override;
  Tensor parseHookResult(const IValue& result) override;
  // The hook's own, on the stream of its last bucket.
  void end_step();

 private:
  struct Pending {
    Reduction reduction;
    Tensor tensor;
    Strings names;
    std::optional<c10::Stream> stream;  // none on the CPU
  };
  GradientBucket describe(c10d::GradBucket& bucket) const;
  Reduction reduce_sparse(const Tensor& tensor);
  [[noreturn]] void rethrow_named(size_t index, const Strings& names) const;

  Hook hook_;
  ProcessGroup group_;
  std::map<const TensorImpl*, std::string> names_;
  std::map<size_t, Pending> pending_;
  std::optional<c10::Stream> last_stream_;
};

}  // namespace muster
