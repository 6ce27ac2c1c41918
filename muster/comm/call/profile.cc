// An event is an at::RecordFunction that ends in another thread than it began in: the thread's
// profiler state goes along with what ends it.
#include "muster/comm/call/profile.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <memory>
#include <utility>
#include <vector>

#include "muster/base/torch_names.h"

namespace muster {

bool profiler_looks_on() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

Callback begin_event(const std::string& title, const Tensors& tensors) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks)
    return {};
  const auto event = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  event->_setAsync();
  const std::vector<IValue> inputs(tensors.begin(), tensors.end());
  event->before(title, &inputs);
  return at::wrapPropagateTLSState([event] { event->end(); });
}

}  // namespace muster
