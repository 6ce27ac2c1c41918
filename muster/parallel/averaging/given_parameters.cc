// A module that is replaced takes other parameters along, which no list made before has. A model is
// asked for its own. Of a list, what nobody else holds no model has; but a program may have given
// it so, as a temporary over memory of its own, so that this is only told.
#include "muster/parallel/averaging/given_parameters.h"

#include <torch/nn/module.h>

#include <map>
#include <mutex>
#include <string>

#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

// Whether others could see a change of the tensor: they have it, or another one in its memory.
bool is_held_elsewhere(const Tensor& tensor, size_t kept) {
  return tensor.use_count() > kept || tensor.storage().use_count() > 1;
}

// Whether this is the first time that the owner warns in this process.
bool is_news(const std::string& owner) {
  static std::mutex mutex;
  static auto& told = *new StringSet;  // never destroyed: a program may end in any order
  const Lock lock(mutex);
  return told.insert(owner).second;
}

}  // namespace

GivenParameters::GivenParameters(const Module& of)
    : tensors(of.parameters()), model(std::make_shared<const TensorsOfModel>(of)) {}

// A tied weight is several times in the list.
void require_present(const char* owner,
                     const std::shared_ptr<const TensorsOfModel>& model,
                     const Tensors& kept) {
  if (model)
    return model->require_no_others(owner, cat("the ", owner, " is").c_str());
  std::map<const void*, size_t> counts;
  for (const Tensor& tensor : kept)
    ++counts[tensor.unsafeGetTensorImpl()];
  for (const Tensor& tensor : kept) {
    if (is_held_elsewhere(tensor, counts[tensor.unsafeGetTensorImpl()]) || !is_news(owner))
      continue;
    log_warning(owner,
                ": expected parameters that a model has, got one of shape [",
                sizes_text(tensor),
                "] that only the ",
                owner,
                " has; if a module was replaced, make the ",
                owner,
                " anew on all ranks");
  }
}

}  // namespace muster
