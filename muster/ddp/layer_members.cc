// C++ tells nobody the members of a class, so the layers whose members programs can reach are named
// here. A member may be registered elsewhere in the model, as another layer's, or nowhere.
#include "muster/ddp/layer_members.h"

#include <torch/nn/modules.h>

#include <map>

#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

struct LayerMember {
  const char* name;
  Tensor* tensor;
};

template <class Layer>
std::vector<LayerMember> members_of_layer(Layer& layer) {
  std::vector<LayerMember> members;
  if constexpr (requires { layer.weight; })
    members.push_back({"weight", &layer.weight});
  if constexpr (requires { layer.bias; })
    members.push_back({"bias", &layer.bias});
  if constexpr (requires { layer.in_proj_weight; })
    members = {{"in_proj_weight", &layer.in_proj_weight},
               {"in_proj_bias", &layer.in_proj_bias},
               {"q_proj_weight", &layer.q_proj_weight},
               {"k_proj_weight", &layer.k_proj_weight},
               {"v_proj_weight", &layer.v_proj_weight},
               {"bias_k", &layer.bias_k},
               {"bias_v", &layer.bias_v}};
  if constexpr (requires { layer.weight_ih; })
    members = {{"weight_ih", &layer.weight_ih},
               {"weight_hh", &layer.weight_hh},
               {"bias_ih", &layer.bias_ih},
               {"bias_hh", &layer.bias_hh}};
  return members;
}

template <class... Layers>
std::vector<LayerMember> members_of_one_of(Module& module) {
  std::vector<LayerMember> members;
  const auto look_for = [&](auto* layer) {
    if (layer != nullptr)
      members = members_of_layer(*layer);
    return layer != nullptr;
  };
  static_cast<void>((look_for(dynamic_cast<Layers*>(&module)) || ...));
  return members;
}

std::vector<LayerMember> members_of(Module& module) {
  return members_of_one_of<torch::nn::LinearImpl,
                           torch::nn::BilinearImpl,
                           torch::nn::EmbeddingImpl,
                           torch::nn::EmbeddingBagImpl,
                           torch::nn::Conv1dImpl,
                           torch::nn::Conv2dImpl,
                           torch::nn::Conv3dImpl,
                           torch::nn::ConvTranspose1dImpl,
                           torch::nn::ConvTranspose2dImpl,
                           torch::nn::ConvTranspose3dImpl,
                           torch::nn::BatchNorm1dImpl,
                           torch::nn::BatchNorm2dImpl,
                           torch::nn::BatchNorm3dImpl,
                           torch::nn::InstanceNorm1dImpl,
                           torch::nn::InstanceNorm2dImpl,
                           torch::nn::InstanceNorm3dImpl,
                           torch::nn::LayerNormImpl,
                           torch::nn::GroupNormImpl,
                           torch::nn::PReLUImpl,
                           torch::nn::RNNCellImpl,
                           torch::nn::LSTMCellImpl,
                           torch::nn::GRUCellImpl,
                           torch::nn::MultiheadAttentionImpl>(module);
}

// What the clone has for each registered tensor of the model.
std::map<const TensorImpl*, Tensor> registered_copies(const Module& from, const Module& to) {
  std::map<const TensorImpl*, Tensor> copies;
  const auto note = [&](const Tensors& sources, const Tensors& targets) {
    for (const size_t i : indices_of(targets))
      copies.emplace(sources[i].unsafeGetTensorImpl(), targets[i]);
  };
  note(from.parameters(), to.parameters());
  note(from.buffers(), to.buffers());
  return copies;
}

}  // namespace

std::vector<AssignedMember> assigned_members(Module& model) {
  std::vector<AssignedMember> found;
  model.apply([&](const std::string& prefix, Module& layer) {
    const auto registered = layer.named_parameters(/*recurse=*/false);
    for (const LayerMember& member : members_of(layer)) {
      const Tensor* const own = registered.find(member.name);
      if (!member.tensor->defined() || (own != nullptr && own->is_same(*member.tensor)))
        continue;
      found.push_back({.name = prefix.empty() ? member.name : cat(prefix, ".", member.name),
                       .tensor = *member.tensor,
                       .layer = &layer});
    }
  });
  return found;
}

// A member that is registered nowhere is what it is on the first device: there is no copy of it.
void copy_member_ties(const Module& from, const Module& to, Device device) {
  const auto copies = registered_copies(from, to);
  const auto sources = from.modules(), targets = to.modules();
  for (const size_t i : indices_of(targets)) {
    const std::vector<LayerMember> members = members_of(*sources[i]);
    const std::vector<LayerMember> of_copy = members_of(*targets[i]);
    for (const size_t j : indices_of(members)) {
      const Tensor& member = *members[j].tensor;
      if (const Tensor* const copy = value_at(copies, member.unsafeGetTensorImpl()))
        *of_copy[j].tensor = *copy;
      else if (member.defined())
        *of_copy[j].tensor = member.to(device);
    }
  }
}

}  // namespace muster
