// Sends gradients as products of two thin matrices, with error feedback. A step has one round of
// the power method: P = M·Q is averaged and made orthogonal, Q = Mᵀ·P is averaged, and M becomes
// P·Qᵀ. Source: torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook, in the same arithmetic
// and order.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/hook_memory.h"
#include "muster/ddp/hooks.h"
#include "muster/ddp/numpy_random.h"

namespace muster {

namespace {

// Makes the columns of each matrix orthogonal, in place, one after the other.
void gram_schmidt(const Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (const int64_t i : indices_below(columns)) {
    Tensor column = matrices.slice(2, i, i + 1);
    const Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    // A column of zeros stays one: Python's becomes NaN without an epsilon.
    if (epsilon == 0) {
      column.div_(at::where(norm == 0, at::ones_like(norm), norm));
    } else {
      column.div_(norm + epsilon);
    }
    if (i + 1 == columns)
      continue;
    Tensor rest = matrices.slice(2, i + 1);
    rest.sub_(at::sum(column * rest, {1}, /*keepdim=*/true) * column);
  }
}

// QR is faster with more columns, but not for halves.
void orthogonalize(Tensor matrices, double epsilon) {
  const auto type = matrices.scalar_type();
  const int64_t rank = matrices.size(2);
  if (rank <= 2 || type == kHalf || type == kBFloat16)
    return gram_schmidt(matrices, epsilon);
  Tensor upper = at::empty({matrices.size(0), rank, rank}, matrices.options());
  at::linalg_qr_out(matrices, upper, matrices);
}

// A bucket on its way: matrices M ≈ P·Qᵀ. All Ps lie in one tensor, all Qs in another, and
// gradients that go whole in a third.
struct PowerSgdBucket {
  explicit PowerSgdBucket(GradientBucket of) : bucket(std::move(of)) {}
  GradientBucket bucket;
  Tensor before;  // with the errors of earlier steps
  Indices compressed, whole;
  Tensors matrices, ps, qs;
  Tensor flat_ps, flat_qs, flat_whole;
  bool first = false;  // of this bucket that is compressed
  std::optional<Work> whole_work, ps_work;
};

// Errors and Qs are remembered by the parameters' names, since buckets change.
class PowerSgdHook : public CommunicationHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options)
      : options_(options), random_(options.seed) {}
  std::string name() const override;
  bool remembers() const override { return true; }
  Reduction reduce(GradientBucket bucket) override;
  HookState state() const override;
  void load_state(const HookState& state) override;
  void end_step() override;
  void rescale(double factor) override { errors_.rescale(factor); }
  void recover(ProcessGroup& group) override;

 private:
  Reduction average(const GradientBucket& bucket);
  void choose(PowerSgdBucket& under_way) const;
  void lay_out(PowerSgdBucket& under_way) const;
  void begin_qs(PowerSgdBucket& under_way);
  Tensors kept_qs(const PowerSgdBucket& under_way) const;
  Tensor finish(PowerSgdBucket& under_way);
  void finish_compressed(PowerSgdBucket& now);

  const PowerSgdOptions options_;
  NumpyRandom random_;
  int64_t step_ = 0;
  HookMemory errors_, qs_;
  FiniteStep finite_;
};

std::string PowerSgdHook::name() const {
  const char* const feedback = options_.error_feedback ? "" : ", no error feedback";
  const char* const start = options_.warm_start ? "" : ", no warm start";
  return cat("power_sgd(rank ",
             options_.matrix_rank,
             ", start ",
             options_.start_step,
             ", rate ",
             options_.min_compression_rate,
             feedback,
             start,
             ", epsilon ",
             options_.orthogonalization_epsilon,
             ", seed ",
             options_.seed,
             ")");
}

// The number of draws stands for the generator, which starts from the seed again.
HookState PowerSgdHook::state() const {
  return {.tensors = qs_.copies("q."),
          .own = errors_.copies("error."),
          .numbers = {{"step", step_}, {"drawn", random_.drawn()}}};
}

// Missing tensors start anew, which is right where the number of ranks has changed.
void PowerSgdHook::load_state(const HookState& state) {
  check_hook_state(
      name(), state, {.tensors = {"q."}, .own = {"error."}, .numbers = {"step", "drawn"}});
  qs_.load("q.", state.tensors);
  errors_.load("error.", state.own);
  step_ = find_or(state.numbers, "step");
  random_ = NumpyRandom(options_.seed);
  random_.discard(find_or(state.numbers, "drawn"));
}

// All ranks see the same averages, and so all keep the step's tensors or drop them.
void PowerSgdHook::end_step() {
  ++step_;
  const bool is_finite = finite_.end();
  errors_.end_step(is_finite);
  qs_.end_step(is_finite);
}

// Some ranks may have the failed step's Qs and others not: all begin with new ones, from one seed.
void PowerSgdHook::recover(ProcessGroup& group) {
  qs_ = {};
  errors_.end_step(/*remembers=*/false);
  finite_ = {};
  const Tensor numbers = at::empty({2}, kLong);
  numbers.mutable_data_ptr<int64_t>()[0] = step_;
  numbers.mutable_data_ptr<int64_t>()[1] = random_.drawn();
  group.broadcast(numbers, 0);
  step_ = numbers.const_data_ptr<int64_t>()[0];
  random_ = NumpyRandom(options_.seed);
  random_.discard(numbers.const_data_ptr<int64_t>()[1]);
}

// The plain average, before the first step that compresses.
Reduction PowerSgdHook::average(const GradientBucket& bucket) {
  bucket.tensor.div_(bucket.group.size());
  count_sent(bucket.tensor);
  ProcessGroup group = bucket.group;
  return [tensor = bucket.tensor, work = group.all_reduce_async(bucket.tensor)]() mutable {
    work.wait();
    return tensor;
  };
}

// A gradient is compressed where that saves enough; a vector never does.
void PowerSgdHook::choose(PowerSgdBucket& under_way) const {
  const auto& gradients = under_way.bucket.gradients;
  for (const size_t i : indices_of(gradients)) {
    const int64_t rows = gradients[i].dim() == 0 ? 1 : gradients[i].size(0);
    const int64_t columns = rows == 0 ? 0 : gradients[i].numel() / rows;
    const int64_t rank = std::min({rows, columns, options_.matrix_rank});
    const bool gains =
        static_cast<double>((rows + columns) * rank) * options_.min_compression_rate <
        static_cast<double>(rows * columns);
    (gains ? under_way.compressed : under_way.whole).push_back(i);
    if (gains)
      under_way.matrices.push_back(gradients[i].view({1, rows, columns}));
  }
}

// Makes memory for all Ps in one tensor, and for all Qs in another.
void PowerSgdHook::lay_out(PowerSgdBucket& under_way) const {
  const auto rank_of = [&](const Tensor& matrix) {
    return std::min({matrix.size(1), matrix.size(2), options_.matrix_rank});
  };
  const auto room = [&](int64_t dim, Tensor& flat, Tensors& parts) {
    int64_t size = 0;
    for (const auto& matrix : under_way.matrices)
      size += matrix.size(dim) * rank_of(matrix);
    flat = at::empty({size}, under_way.bucket.tensor.options());
    int64_t begin = 0;
    for (const auto& matrix : under_way.matrices) {
      const int64_t length = matrix.size(dim) * rank_of(matrix);
      parts.push_back(
          flat.slice(0, begin, begin + length).view({1, matrix.size(dim), rank_of(matrix)}));
      begin += length;
    }
  };
  room(1, under_way.flat_ps, under_way.ps);
  room(2, under_way.flat_qs, under_way.qs);
}

// The last step's Qs, of matrices that have kept their shape; undefined for others.
Tensors PowerSgdHook::kept_qs(const PowerSgdBucket& under_way) const {
  Tensors kept(under_way.qs.size());
  for (size_t i = 0; options_.warm_start && i < kept.size(); ++i) {
    const Tensor q = qs_.find(under_way.bucket.names[under_way.compressed[i]]);
    if (q.defined() && q.sizes() == under_way.qs[i].sizes())
      kept[i] = q;
  }
  return kept;
}

// Begins with the last step's Qs, or with random ones, which are the same on all ranks. Python
// draws a seed for a bucket without a matrix, too.
void PowerSgdHook::begin_qs(PowerSgdBucket& under_way) {
  const auto kept = kept_qs(under_way);
  const bool all_kept = all_of(kept, &Tensor::defined);
  const bool draws_for_nothing = kept.empty() && (under_way.first || !options_.warm_start);
  std::optional<at::Generator> generator;
  if (!all_kept || draws_for_nothing)
    generator = at::detail::createCPUGenerator(random_.below(1'000'000'000));
  for (const size_t i : indices_of(kept)) {
    Tensor& q = under_way.qs[i];
    if (kept[i].defined()) {
      q.copy_(kept[i]);
    } else {
      q.copy_(at::randn(q.sizes(), generator, at::TensorOptions(q.scalar_type())));
    }
    orthogonalize(q, options_.orthogonalization_epsilon);
  }
}

// Starts what can be sent at once: gradients that go whole, and the Ps.
Reduction PowerSgdHook::reduce(GradientBucket bucket) {
  if (step_ < options_.start_step)
    return average(bucket);
  auto under_way = std::make_shared<PowerSgdBucket>(std::move(bucket));
  PowerSgdBucket& now = *under_way;
  now.first = step_ == options_.start_step;
  if (options_.error_feedback) {
    errors_.add_to(now.bucket);
    now.before = now.bucket.tensor.clone();
  }
  choose(now);
  lay_out(now);
  begin_qs(now);
  for (const size_t i : indices_of(now.matrices))
    at::bmm_out(now.ps[i], now.matrices[i], now.qs[i]);
  Tensors whole;
  for (const size_t i : now.whole)
    whole.push_back(now.bucket.gradients[i].reshape(-1));
  if (!whole.empty()) {
    now.flat_whole = at::cat(whole);
    count_sent(now.flat_whole);
    now.whole_work = now.bucket.group.all_reduce_async(now.flat_whole);
  }
  if (!now.matrices.empty()) {
    count_sent(now.flat_ps);
    count_sent(now.flat_qs);
    now.ps_work = now.bucket.group.all_reduce_async(now.flat_ps);
  }
  return [this, under_way] {
    return finish(*under_way);
  };
}

// Averages the Ps, computes and averages the Qs, and puts the products where the gradients were.
void PowerSgdHook::finish_compressed(PowerSgdBucket& now) {
  now.ps_work->wait();
  for (const Tensor& p : now.ps)
    orthogonalize(p, options_.orthogonalization_epsilon);
  for (const size_t i : indices_of(now.qs))
    at::bmm_out(now.qs[i], now.matrices[i].transpose(1, 2), now.ps[i]);
  now.bucket.group.all_reduce(now.flat_qs);
  now.flat_qs.div_(now.bucket.group.size());
  for (const size_t i : indices_of(now.qs)) {
    at::bmm_out(now.matrices[i], now.ps[i], now.qs[i].transpose(1, 2));
    if (options_.warm_start)
      qs_.set(now.bucket.names[now.compressed[i]], now.qs[i]);
  }
}

// The difference to what the gradients were is the error, which the next step adds.
Tensor PowerSgdHook::finish(PowerSgdBucket& now) {
  if (now.whole_work) {
    now.whole_work->wait();
    now.flat_whole.div_(now.bucket.group.size());
    int64_t begin = 0;
    for (const size_t i : now.whole) {
      Tensor gradient = now.bucket.gradients[i];
      gradient.copy_(now.flat_whole.slice(0, begin, begin + gradient.numel()).view_as(gradient));
      begin += gradient.numel();
    }
  }
  if (now.ps_work)
    finish_compressed(now);
  finite_.look(now.bucket.tensor);
  if (options_.error_feedback)
    errors_.keep(now.bucket, now.before.sub_(now.bucket.tensor));
  return now.bucket.tensor;
}

bool is_size(double number) {
  return number >= 0 && std::isfinite(number);
}

}  // namespace

Hook power_sgd(const PowerSgdOptions& options) {
  const bool are_sizes =
      is_size(options.min_compression_rate) && is_size(options.orthogonalization_epsilon);
  if (options.matrix_rank < 1 || options.start_step < 0 || !are_sizes) {
    throw invalid_argument(
        "power_sgd: expected a matrix_rank of 1 or more, and a start_step, a min_compression_rate "
        "and an "
        "orthogonalization_epsilon of 0 or more, got ",
        options.matrix_rank,
        ", ",
        options.start_step,
        ", ",
        options.min_compression_rate,
        " and ",
        options.orthogonalization_epsilon,
        "; the defaults are 1, 1000, 2 and 0");
  }
  return {std::make_shared<PowerSgdHook>(options)};
}

}  // namespace muster
