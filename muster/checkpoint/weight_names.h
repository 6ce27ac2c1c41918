// A table of the names that published files of weights have for a model's tensors. load_weights
// reads by it, and save_weights writes by it.
//
//   const muster::WeightNames kGpt2{
//       .rows = {{"wte.weight", "token.weight"},
//                {"lm_head.weight", "token.weight"},  // a copy, which some files have
//                {"h.*.attn.c_attn.*", "blocks.*.qkv.*", muster::WeightForm::transposed},
//                {"h.*.attn.bias", ""}},  // no weight
//       .prefix = "transformer."};
//   muster::load_weights(*net, "gpt2/model.safetensors", {.names = kGpt2}, ctx.process_group());
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

// How the file has a tensor.
enum class WeightForm {
  as_is,
  transposed  // matrices; other tensors are as they are
};

struct WeightRow {
  // A name in the file. `*` stands for any text without a dot. `self.{query,key,value}.weight` are
  // several tensors, which the model has as one: joined along its first dimension, in this order.
  std::string file;
  // The name in the model, with as many `*`, in the same order. Empty: the tensor is left out.
  std::string model;
  WeightForm form = WeightForm::as_is;
};

struct WeightNames {
  // The first row that fits a name counts. A name that fits none is the same in the model. Several
  // rows may name one tensor of the model: a file has one of them, or equal copies.
  std::vector<WeightRow> rows{};
  // What files may have in front of the names in the rows. It is not written.
  std::string prefix{};
};

// Throws: invalid_argument for a row that has no name in the file, other numbers of `*` on its two
// sides, or braces that are not one list.
void check_weight_names(const WeightNames& names);

// What a tensor of a file is to the model.
struct WeightPlace {
  std::string model;  // the tensor of the model; empty: it is left out
  size_t part = 0;    // of it
  // The file's names of all parts, without the prefix.
  Strings parts{};
  WeightForm form = WeightForm::as_is;
};

// Returns nothing for a name that fits no row.
std::optional<WeightPlace> weight_in_model(const WeightNames& names, const std::string& in_file);

// The other way round: where a file has a tensor of the model. Without a row, under the same name.
WeightPlace weight_in_file(const WeightNames& names, const std::string& in_model);

}  // namespace muster
