// A class for each kind of model, and one around another that leaves some tensors out.
#include "muster/ddp/model_source.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lock.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/ddp/layer_members.h"
#include "muster/ddp/renormalized.h"

namespace muster {

namespace {

// LibTorch's lists may have undefined tensors, of layers without a bias for example.
template <class Named>
ModelTensors defined_items(const Named& items) {
  ModelTensors found;
  for (const auto& item : items) {
    if (item.value().defined())
      found.push_back({item.key(), item.value()});
  }
  return found;
}

// A C++ module. It is asked anew each time: users register parameters during training.
class ModuleSource : public ModelSource {
 public:
  explicit ModuleSource(ModulePtr model) : model_(std::move(model)) {}
  ModelTensors parameters() const override { return defined_items(model_->named_parameters()); }
  ModelTensors buffers() const override { return defined_items(model_->named_buffers()); }
  void for_each_parameter(const Visit& visit) const override {
    // It visits the parameters themselves: LibTorch's own lists are copies, with all names put
    // together.
    struct Access : Module {
      static auto own_parameters() { return &Access::parameters_; }
    };
    const Module& model = *model_;
    model.apply([&](const Module& module) {
      for (const auto& item : module.*Access::own_parameters()) {
        if (item.value().defined())
          visit(item.value());
      }
    });
  }
  TensorImpls sparse() const override;
  ModelTensors renormalized() const override { return renormalized_weights(*model_); }
  Strings assigned() const override {
    return mapped(assigned_members(*model_), &AssignedMember::name);
  }
  bool is_training() const override { return model_->is_training(); }

 private:
  ModulePtr model_;
};

// LibTorch has two modules with sparse gradients.
TensorImpls ModuleSource::sparse() const {
  TensorImpls sparse;
  for (const auto& module : model_->modules()) {
    if (const auto* embedding = module->as<torch::nn::Embedding>();
        embedding && embedding->options.sparse()) {
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = module->as<torch::nn::EmbeddingBag>();
               bag && bag->options.sparse()) {
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return sparse;
}

// A scripted module, whose lists are named already.
class ScriptSource : public ModelSource {
 public:
  explicit ScriptSource(torch::jit::Module model) : model_(std::move(model)) {}
  ModelTensors parameters() const override { return named(model_.named_parameters()); }
  ModelTensors buffers() const override { return named(model_.named_buffers()); }
  void for_each_parameter(const Visit& visit) const override {
    for (const Tensor& tensor : model_.parameters())
      visit(tensor);
  }
  bool is_training() const override { return model_.is_training(); }

 private:
  // LibTorch has a type for each of its lists.
  template <class List>
  static ModelTensors named(const List& list) {
    ModelTensors found;
    for (const auto& item : list)
      found.push_back({item.name, item.value});
    return found;
  }
  torch::jit::Module model_;
};

// A plain list of parameters, which has no modes and no buffers.
class ListSource : public ModelSource {
 public:
  explicit ListSource(ModelTensors parameters) : parameters_(std::move(parameters)) {}
  ModelTensors parameters() const override { return parameters_; }
  ModelTensors buffers() const override { return {}; }
  void for_each_parameter(const Visit& visit) const override {
    for (const NamedTensor& item : parameters_)
      visit(item.tensor);
  }
  bool is_training() const override { return true; }

 private:
  ModelTensors parameters_;
};

// Another source without the ignored tensors. Those given by name are whatever has the name now: a
// module that replaces another has new tensors under the same names.
class PartialSource : public ModelSource {
 public:
  PartialSource(ModelSourcePtr whole, const std::vector<IgnoredParameter>& ignored);
  ModelTensors parameters() const override { return followed(whole_->parameters()); }
  ModelTensors buffers() const override { return followed(whole_->buffers()); }
  void for_each_parameter(const Visit& visit) const override;
  TensorImpls sparse() const override { return whole_->sparse(); }
  Strings assigned() const override { return whole_->assigned(); }
  ModelTensors renormalized() const override { return kept(whole_->renormalized()); }
  bool ignores(const Tensor& tensor) const override {
    const Lock lock(mutex_);
    return ignored_.contains(tensor.unsafeGetTensorImpl());
  }
  bool is_training() const override { return whole_->is_training(); }

 private:
  ModelTensors kept(ModelTensors items) const {
    std::erase_if(items, [&](const NamedTensor& item) { return ignores(item.tensor); });
    return items;
  }
  ModelTensors followed(ModelTensors items) const {
    follow(items);
    return kept(std::move(items));
  }
  void follow(const ModelTensors& items) const;

  ModelSourcePtr whole_;
  Tensors given_;  // themselves, so that no other tensor gets their addresses
  // The rest follows the model. Backwards ask ignores() in their own threads.
  mutable std::mutex mutex_;
  mutable NamedTensors named_;
  mutable TensorImpls ignored_;                     // addresses of both
  mutable std::vector<const TensorImpl*> visited_;  // parameters of the last visit
};

bool is_meant(const IgnoredParameter& ignored, const NamedTensor& item) {
  const auto* name = std::get_if<std::string>(&ignored);
  return name != nullptr ? item.name == *name : item.tensor.is_same(std::get<Tensor>(ignored));
}

[[noreturn]] void fail_not_of_model(const IgnoredParameter& ignored, const ModelTensors& all) {
  const auto* name = std::get_if<std::string>(&ignored);
  throw invalid_argument(
      "DistributedDataParallel: expected ignored_parameters to be parameters or buffers of "
      "the model, got ",
      name != nullptr ? in_quotes(*name) : "a tensor that is neither",
      "; its first is '",
      all.empty() ? "" : all[0].name,
      "'");
}

// Every ignored tensor must be the model's, by its name or itself.
PartialSource::PartialSource(ModelSourcePtr whole, const std::vector<IgnoredParameter>& ignored)
    : whole_(std::move(whole)) {
  auto all = whole_->parameters();
  for (auto& buffer : whole_->buffers())
    all.push_back(std::move(buffer));
  for (const IgnoredParameter& one : ignored) {
    const auto found =
        std::ranges::find_if(all, [&](const NamedTensor& item) { return is_meant(one, item); });
    if (found == all.end())
      fail_not_of_model(one, all);
    if (const auto* name = std::get_if<std::string>(&one)) {
      named_[*name];  // follow() gives it the tensor
    } else {
      given_.push_back(found->tensor);
      ignored_.insert(found->tensor.unsafeGetTensorImpl());
    }
  }
  follow(all);
}

// A visit has no names. They are asked for only where the model has other parameters than before,
// since every forward visits.
void PartialSource::for_each_parameter(const Visit& visit) const {
  Tensors all;
  whole_->for_each_parameter([&](const Tensor& tensor) { all.push_back(tensor); });
  const auto now = mapped(all, &Tensor::unsafeGetTensorImpl);
  if (!std::ranges::equal(now, visited_)) {
    follow(whole_->parameters());
    visited_.assign(now.begin(), now.end());
  }
  for (const Tensor& tensor : all)
    if (!ignores(tensor))
      visit(tensor);
}

// What had a name before is the model's no more, unless another name keeps it.
void PartialSource::follow(const ModelTensors& items) const {
  const Lock lock(mutex_);
  bool has_changed = false;
  for (const NamedTensor& item : items) {
    Tensor* const found = value_at(named_, item.name);
    if (found == nullptr || found->is_same(item.tensor))
      continue;
    *found = item.tensor;
    has_changed = true;
  }
  if (!has_changed)
    return;
  ignored_.clear();
  for (const Tensor& tensor : given_)
    ignored_.insert(tensor.unsafeGetTensorImpl());
  for (const auto& [name, tensor] : named_)
    ignored_.insert(tensor.unsafeGetTensorImpl());
}

}  // namespace

ModelSourcePtr source_of(ModulePtr model) {
  return std::make_shared<ModuleSource>(std::move(model));
}

ModelSourcePtr source_of(torch::jit::Module model) {
  return std::make_shared<ScriptSource>(std::move(model));
}

// A tensor that was computed from others has no gradient of its own.
ModelSourcePtr source_of(ModelTensors parameters) {
  for (const size_t i : indices_of(parameters)) {
    NamedTensor& one = parameters[i];
    if (one.name.empty())
      one.name = cat("parameter ", i);
    if (one.tensor.defined() && one.tensor.is_leaf())
      continue;
    throw invalid_argument("GradientReducer: expected leaf tensors, got '",
                           one.name,
                           "', which ",
                           one.tensor.defined() ? "was computed from others" : "is undefined",
                           "; give the tensors that an optimizer updates");
  }
  return std::make_shared<ListSource>(std::move(parameters));
}

// Most models ignore nothing, and need no further class.
ModelSourcePtr without_ignored(ModelSourcePtr source,
                               const std::vector<IgnoredParameter>& ignored) {
  if (ignored.empty())
    return source;
  return std::make_shared<PartialSource>(std::move(source), ignored);
}

}  // namespace muster
