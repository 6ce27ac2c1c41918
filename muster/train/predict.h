// Predictions for a whole dataset, divided over the ranks, in the dataset's order.
//
//   const at::Tensor logits = muster::predict(ctx, net, test, [](auto& net, const auto& batch) {
//     return net(batch.features);
//   });  // on rank 0
//
//   muster::predict(ctx, net, test, forward, [&](const auto& piece) {
//     write_rows(file, piece.indices, piece.outputs);  // on rank 0, piece by piece
//   });
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/never.h"
#include "muster/base/tensors.h"
#include "muster/data/collate.h"
#include "muster/data/fields.h"
#include "muster/train/evaluation_batches.h"
#include "muster/train/evaluation_mode.h"
#include "muster/train/prediction_exchange.h"

namespace muster {

// The outputs for some samples that follow each other in the dataset.
template <class Output>
struct Predictions {
  std::vector<int64_t> indices;  // rising; a sample that skip_bad has skipped is missing
  Output outputs;                // a row for each, on the CPU
};

namespace evaluation {

template <class Loader>
concept HasIndices = HasDataset<Loader> && requires(Loader& loader) {
  (*loader.begin()).sample_indices;
  loader.bad_samples();
};

template <class Model, class Loader, class Forward>
using PredictedBy = std::remove_cvref_t<
    std::invoke_result_t<const Forward&, Model&, decltype(*std::declval<Loader&>().begin())>>;

// Calls `visit` with every tensor of an output.
template <class Output, class F>
void each_tensor(Output& output, const F& visit) {
  if constexpr (std::is_same_v<Output, at::Tensor>) {
    visit(output);
  } else if constexpr (collation::kTuple<Output>) {
    std::apply([&](auto&... element) { (each_tensor(element, visit), ...); }, output);
  } else if constexpr (PlainStruct<Output>) {
    std::apply([&](auto&... field) { (each_tensor(field, visit), ...); }, fields_of(output));
  } else {
    static_assert(kNever<Output>, "an output is a tensor, or a tuple or a plain struct of tensors");
  }
}

template <class Output>
Tensors tensors_of(Output& output) {
  Tensors tensors;
  each_tensor(output, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

template <class Output>
Output output_of(const Tensors& tensors) {
  Output output{};
  auto next = tensors.begin();
  each_tensor(output, [&](at::Tensor& tensor) { tensor = *next++; });
  return output;
}

// `write` takes IndexedRows, on rank 0.
template <class Model, class Loader, class Forward, class Write>
void predict_rows(ProcessGroup& group,
                  Model& model,
                  Loader& loader,
                  const Forward& forward,
                  bool in_pieces,
                  const Write& write) {
  static_assert(HasIndices<Loader>,
                "the samples of a stream have no order: predict from a DataLoader, or gather what "
                "the examples say of themselves by ProcessGroup::gather_varying");
  const EvaluationMode mode(with_modes(model), group);
  PredictionExchange exchange(group,
                              {.dataset_size = loader.dataset().size(),
                               .skipped = [&] { return loader.bad_samples(); },
                               .skipped_before = std::ssize(loader.bad_samples()),
                               .in_pieces = in_pieces,
                               .write = write});
  const auto predict_batch = [&](const auto& batch, bool counts) {
    auto output = forward(model, batch);
    if (counts) {
      exchange.give({batch.sample_indices, tensors_of(output)});
    } else {
      exchange.give({});
    }
  };
  exchange.run([&] {
    without_moving(loader, [&] { for_each_batch(group, model, loader, predict_batch); });
  });
}

}  // namespace evaluation

// Calls `write(predictions)` on rank 0 with the outputs of `forward(model, batch)`, piece by piece
// in the order of the dataset; `predictions` are Predictions of what `forward` returns: a tensor,
// or a tuple or a plain struct of tensors, with a row for each sample of the batch. Rows of batches
// may differ in their shapes, as where each batch is padded to its own length: those of a piece
// have one. Rank 0 holds only what waits for an earlier sample: about one batch of each rank where
// the loader does not shuffle.
//
// The loader must visit this rank's part and repeat no sample: ctx.loader(data, {…}, {.shuffle =
// false, .pad = false}). Ranks may have different numbers of batches, also none. Models and `ctx`
// are as evaluate()'s. Collective: yes. Throws: on every rank, what `forward`, `write` or the
// loader has thrown on any (of a model that the ranks run together, what `write` has: a rank that
// fails alone leaves the others in the model, where the job's limit ends them); invalid_argument
// for samples that are repeated or left out, and for rows of several types.
template <class Context, class Model, class Loader, class Forward, class Write>
void predict(
    Context& ctx, Model& model, Loader& loader, const Forward& forward, const Write& write) {
  using Output = evaluation::PredictedBy<Model, Loader, Forward>;
  evaluation::predict_rows(
      evaluation::group_of(ctx),
      model,
      loader,
      forward,
      /*in_pieces=*/true,
      [&](const evaluation::IndexedRows& rows) {
        write(Predictions<Output>{rows.indices, evaluation::output_of<Output>(rows.outputs)});
      });
}

// Returns all outputs on rank 0, on the CPU; on other ranks undefined tensors. Shapes: of the
// outputs [samples of the dataset, …]. Throws: also invalid_argument for a sample that skip_bad
// skips, and for rows of several shapes.
template <class Context, class Model, class Loader, class Forward>
auto predict(Context& ctx, Model& model, Loader& loader, const Forward& forward) {
  using Output = evaluation::PredictedBy<Model, Loader, Forward>;
  const int64_t size = loader.dataset().size();
  Output none{};
  Tensors all(evaluation::tensors_of(none).size());
  evaluation::predict_rows(evaluation::group_of(ctx),
                           model,
                           loader,
                           forward,
                           /*in_pieces=*/false,
                           [&](const evaluation::IndexedRows& rows) {
                             for (const size_t i : indices_of(rows.outputs)) {
                               const at::Tensor& piece = rows.outputs[i];
                               std::vector<int64_t> shape = piece.sizes().vec();
                               shape[0] = size;
                               if (!all[i].defined())
                                 all[i] = at::empty(shape, piece.options());
                               all[i].narrow(0, rows.indices.front(), piece.size(0)).copy_(piece);
                             }
                           });
  return evaluation::output_of<Output>(all);
}

}  // namespace muster
