// On the CPU each rank gathers count, mean and sum of squares of every channel, in double, and
// joins them; on a GPU LibTorch's own kernels do the same, as in Python. The backward needs two
// sums over all ranks for each channel.
#include "muster/ddp/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <tuple>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/join_rounds.h"

namespace muster {

namespace {

// The dimensions over which a channel's statistics are taken.
Int64s all_but_channels(const Tensor& tensor) {
  Int64s dims{0};
  for (int64_t i = 2; i < tensor.dim(); ++i)
    dims.push_back(i);
  return dims;
}

// Shapes values of [C] so that they can be added to [N, C, …].
Tensor per_channel(const Tensor& values, const Tensor& like) {
  Int64s sizes(like.dim(), 1);
  sizes[1] = values.numel();
  return values.to(like.scalar_type()).view(sizes);
}

// LibTorch's kernels take an optional where modules have an undefined tensor.
std::optional<Tensor> if_defined(const Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Gathers a row from every rank.
Tensor rows_of_all_ranks(ProcessGroup group, const Tensor& mine) {
  const Tensor all = at::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather(all, mine.view({1, -1}));
  return all;
}

// One value has no variance.
void check_values(double count, const ProcessGroup& group) {
  if (count > 1)
    return;
  throw invalid_argument(
      "sync_batch_norm: expected at least two values of a channel on all ranks together, got ",
      count,
      " (rank ",
      group.job_rank(),
      "); give larger batches, or call eval()");
}

// Statistics of the joined batch as LibTorch's kernels give them.
struct JoinedStatistics {
  Tensor mean, invstd;
  Tensor counts;  // one for each rank
};

// Statistics of the joined batch, in double.
struct SummedStatistics {
  Tensor mean, variance, unbiased;
  double count = 0;
};

// Joins each rank's count, mean and sum of squares about its mean.
// Half types are widened: their differences would be rounded.
SummedStatistics statistics_by_sums(const Tensor& given, const ProcessGroup& group) {
  const Tensor input = given.scalar_type() == kDouble ? given : given.to(kFloat);
  const int64_t channels = input.size(1);
  const int64_t count = input.numel() / std::max<int64_t>(channels, 1);
  const auto doubles = input.options().dtype(kDouble);
  Tensor mean = at::zeros({channels}, doubles), squares = mean;
  if (count > 0) {
    const auto dims = all_but_channels(input);
    mean = at::sum(input, dims, false, kDouble) / static_cast<double>(count);
    // The rounded mean is taken away first, and the rest of it corrected afterwards.
    const Tensor shift = mean.to(input.scalar_type());
    squares = at::sum((input - per_channel(shift, input)).to(kDouble).square(), dims) -
              count * (mean - shift.to(kDouble)).square();
  }
  const Tensor all =
      rows_of_all_ranks(group, at::cat({mean, squares, at::full({1}, count, doubles)}));
  const Tensor counts = all.slice(1, 2 * channels);
  const Tensor means = all.slice(1, 0, channels);
  SummedStatistics joined;
  joined.count = counts.sum().item<double>();
  check_values(joined.count, group);
  joined.mean = (means * counts).sum(0) / joined.count;
  const Tensor sum = all.slice(1, channels, 2 * channels).sum(0) +
                     ((means - joined.mean).square() * counts).sum(0);
  joined.variance = sum / joined.count;
  joined.unbiased = sum / (joined.count - 1);
  return joined;
}

// Moves running statistics towards those of now.
void follow(const Tensor& running, const Tensor& now, double momentum) {
  if (running.defined())
    running.mul_(1 - momentum).add_(now.to(running.scalar_type()), momentum);
}

// What a rank tells: mean, deviation⁻¹ and count. One without values tells finite numbers, which
// LibTorch's kernel takes times their count.
Tensor statistics_of_rank(const Tensor& input, double eps, ScalarType type) {
  const int64_t channels = input.size(1);
  const auto options = input.options().dtype(type);
  if (input.numel() == 0)
    return at::cat({at::ones({2 * channels}, options), at::zeros({1}, options)});
  const auto [mean, invstd] = at::batch_norm_stats(input, eps);
  return at::cat({mean, invstd, at::full({1}, input.numel() / channels, options)});
}

// The kernel divides by the count so far. So ranks without values come last, where the host need
// not know them.
Tensor ranks_with_values_first(const Tensor& all) {
  const Tensor is_without = (all.select(1, all.size(1) - 1) < 1).to(kInt);
  return all.index_select(0, is_without.argsort(/*stable=*/true));
}

// Calls LibTorch's kernels for GPUs as Python's SyncBatchNorm does. The host waits for the GPU only
// where this rank has too few values to know by itself that all together have enough.
JoinedStatistics statistics_on_gpu(const Tensor& input,
                                   const SyncBatchNormTensors& tensors,
                                   double momentum,
                                   double eps,
                                   const ProcessGroup& group) {
  const int64_t channels = input.size(1);
  const auto type = input.scalar_type() == kDouble ? kDouble : kFloat;
  const Tensor all =
      ranks_with_values_first(rows_of_all_ranks(group, statistics_of_rank(input, eps, type)));
  JoinedStatistics joined;
  joined.counts = all.select(1, 2 * channels).contiguous();
  if (input.numel() <= channels)
    check_values(joined.counts.sum().item<double>(), group);
  const Tensor counts = tensors.running_mean.defined()
                            ? joined.counts.to(tensors.running_mean.scalar_type())
                            : joined.counts;
  // Of its first argument the kernel takes the type alone, where there are no running statistics.
  std::tie(joined.mean, joined.invstd) =
      at::batch_norm_gather_stats_with_counts(all,
                                              all.slice(1, 0, channels).contiguous(),
                                              all.slice(1, channels, 2 * channels).contiguous(),
                                              if_defined(tensors.running_mean),
                                              if_defined(tensors.running_var),
                                              momentum,
                                              eps,
                                              counts);
  return joined;
}

// Autograd saves values of its own kinds alone: the group goes as a capsule.
struct SavedGroup : torch::CustomClassHolder {
  explicit SavedGroup(ProcessGroup of) : group(std::move(of)) {}
  ProcessGroup group;
};

class SyncNormFunction : public torch::autograd::Function<SyncNormFunction> {
 public:
  static Tensor forward(AutogradContext* context,
                        const Tensor& input,
                        const std::optional<Tensor>& weight_or_none,
                        const std::optional<Tensor>& bias_or_none,
                        const SyncBatchNormTensors& tensors,
                        double momentum,
                        double eps,
                        const ProcessGroup& group);
  static Tensors backward(AutogradContext* context, Tensors gradients);

 private:
  // Both give the gradients of the weight and, whether there is one or not, of the bias to
  // `results`.
  static Tensor backward_by_sums(const Tensor& gradient,
                                 const Tensors& saved,
                                 double count,
                                 ProcessGroup group,
                                 Tensors& results,
                                 bool needs_input);
  static Tensor backward_on_gpu(const Tensor& gradient,
                                const Tensors& saved,
                                ProcessGroup group,
                                Tensors& results,
                                bool needs_input);
};

// The output is scale · input + shift, for each channel.
Tensor SyncNormFunction::forward(AutogradContext* context,
                                 const Tensor& input,
                                 const std::optional<Tensor>& weight_or_none,
                                 const std::optional<Tensor>& bias_or_none,
                                 const SyncBatchNormTensors& tensors,
                                 double momentum,
                                 double eps,
                                 const ProcessGroup& group) {
  const Tensor weight = weight_or_none.value_or(Tensor()), bias = bias_or_none.value_or(Tensor());
  if (bias.defined())
    context->saved_data["type of bias"] = bias.scalar_type();
  context->saved_data["group"] = IValue::make_capsule(c10::make_intrusive<SavedGroup>(group));
  if (input.is_cuda()) {
    const auto joined = statistics_on_gpu(input, tensors, momentum, eps, group);
    context->save_for_backward({input, weight, joined.mean, joined.invstd, joined.counts.to(kInt)});
    if (input.numel() == 0)
      return at::empty_like(input);
    return at::batch_norm_elemt(
        input, if_defined(weight), if_defined(bias), joined.mean, joined.invstd, eps);
  }
  const auto joined = statistics_by_sums(input, group);
  follow(tensors.running_mean, joined.mean, momentum);
  follow(tensors.running_var, joined.unbiased, momentum);
  const Tensor invstd = at::rsqrt(joined.variance + eps);
  context->saved_data["count"] = joined.count;
  context->save_for_backward({input, weight, joined.mean, invstd, Tensor()});
  const Tensor scale = weight.defined() ? invstd * weight : invstd;
  const Tensor shift = bias.defined() ? bias - joined.mean * scale : -joined.mean * scale;
  const auto type = input.scalar_type() == kDouble ? kDouble : kFloat;
  return (input.to(type) * per_channel(scale.to(type), input.to(type)))
      .add_(per_channel(shift.to(type), input.to(type)))
      .to(input.scalar_type());
}

// dx = (dy − mean(dy) − (x − mean) · invstd² · mean(dy · (x − mean))) · invstd · weight, where the
// means are over the joined batch.
Tensor SyncNormFunction::backward_by_sums(const Tensor& gradient,
                                          const Tensors& saved,
                                          double count,
                                          ProcessGroup group,
                                          Tensors& results,
                                          bool needs_input) {
  const Tensor &weight = saved[1], &mean = saved[2], &invstd = saved[3];
  const auto type = saved[0].scalar_type() == kDouble ? kDouble : kFloat;
  const Tensor dy = gradient.to(type);
  const Tensor centred = saved[0].to(type) - per_channel(mean, dy);
  const auto dims = all_but_channels(dy);
  const Tensor sum_dy = at::sum(dy, dims, false, kDouble);
  const Tensor sum_dy_xmu = at::sum(dy * centred, dims, false, kDouble);
  if (weight.defined())
    results[1] = (sum_dy_xmu * invstd).to(weight.scalar_type());
  results[2] = sum_dy;
  if (!needs_input)
    return {};
  const Tensor sums = at::cat({sum_dy, sum_dy_xmu}) / count;
  group.all_reduce(sums);
  const int64_t channels = mean.numel();
  const Tensor slope = invstd.square() * sums.slice(0, channels);
  const Tensor scale = weight.defined() ? invstd * weight : invstd;
  return ((dy - per_channel(sums.slice(0, 0, channels), dy) - centred * per_channel(slope, dy)) *
          per_channel(scale, dy))
      .to(saved[0].scalar_type());
}

// A rank without values still takes part in the sums.
Tensor SyncNormFunction::backward_on_gpu(const Tensor& gradient,
                                         const Tensors& saved,
                                         ProcessGroup group,
                                         Tensors& results,
                                         bool needs_input) {
  const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &invstd = saved[3];
  Tensor sum_dy = at::zeros_like(mean), sum_dy_xmu = at::zeros_like(mean);
  Tensor weight_gradient = weight.defined() ? at::zeros_like(weight) : Tensor();
  if (input.numel() > 0) {
    std::tie(sum_dy, sum_dy_xmu, weight_gradient, std::ignore) =
        at::batch_norm_backward_reduce(gradient,
                                       input,
                                       mean,
                                       invstd,
                                       if_defined(weight),
                                       /*input_g=*/true,
                                       weight.defined(),
                                       /*bias_g=*/false);
  }
  if (weight.defined())
    results[1] = weight_gradient;
  results[2] = sum_dy;
  if (!needs_input)
    return {};
  const Tensor sums = at::cat({sum_dy, sum_dy_xmu});
  group.all_reduce(sums);
  if (input.numel() == 0)
    return at::empty_like(input);
  const Tensor same_type = weight.defined() ? weight.to(mean.scalar_type()) : weight;
  const int64_t channels = mean.numel();
  return at::batch_norm_backward_elemt(gradient,
                                       input,
                                       mean,
                                       invstd,
                                       if_defined(same_type),
                                       sums.slice(0, 0, channels),
                                       sums.slice(0, channels),
                                       saved[4]);
}

// Weight and bias get the sums of this rank alone: DistributedDataParallel averages them as all
// others.
Tensors SyncNormFunction::backward(AutogradContext* context, Tensors gradients) {
  const auto capsule = context->saved_data["group"].toCapsule();
  const ProcessGroup group = static_cast<SavedGroup&>(*capsule).group;
  if (at::GradMode::is_enabled()) {
    throw failed_precondition(
        "sync_batch_norm: expected a backward without create_graph, since the statistics are "
        "those of all ranks, got one with it (rank ",
        group.job_rank(),
        "); call eval(), or use BatchNorm");
  }
  const auto saved = context->get_saved_variables();
  Tensors results(7);
  const bool needs_input = context->needs_input_grad(0);
  const Tensor gradient = gradients[0].contiguous(saved[0].suggest_memory_format());
  results[0] = saved[0].is_cuda() ? backward_on_gpu(gradient, saved, group, results, needs_input)
                                  : backward_by_sums(gradient,
                                                     saved,
                                                     context->saved_data["count"].toDouble(),
                                                     group,
                                                     results,
                                                     needs_input);
  const auto bias = context->saved_data.find("type of bias");
  results[2] =
      bias == context->saved_data.end() ? Tensor() : results[2].to(bias->second.toScalarType());
  return results;
}

}  // namespace

void refuse_statistics_inside_of_join(int rank) {
  throw failed_precondition(
      "sync_batch_norm: expected to be outside of join(), where a rank without inputs has no "
      "statistics to give, got a forward in training mode inside of it (rank ",
      rank,
      "); set .stop_together, use BatchNorm, or give all ranks the same number of inputs");
}

Tensor sync_batch_norm(const Tensor& input,
                       const SyncBatchNormTensors& tensors,
                       double momentum,
                       double eps,
                       const ProcessGroup& group) {
  if (group.size() > 1 && RanksShadow::here())
    refuse_statistics_inside_of_join(group.job_rank());
  if (input.dim() < 2) {
    throw invalid_argument("sync_batch_norm: expected [N, C, …], got [",
                           join(input.sizes(), ", "),
                           "]; give samples and channels");
  }
  return SyncNormFunction::apply(input.contiguous(input.suggest_memory_format()),
                                 if_defined(tensors.weight),
                                 if_defined(tensors.bias),
                                 tensors,
                                 momentum,
                                 eps,
                                 group);
}

// Without a momentum the running statistics are the mean of all batches so far, as in PyTorch.
Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  if (!is_training())
    return BatchNormImplBase::forward(input);
  double momentum = options.momentum().value_or(0);
  if (num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum())
      momentum = 1.0 / num_batches_tracked.item<double>();
  }
  return sync_batch_norm(
      input,
      {.weight = weight, .bias = bias, .running_mean = running_mean, .running_var = running_var},
      momentum,
      options.eps(),
      group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "muster::SyncBatchNorm(" << options.num_features() << ", " << group_.size()
         << " ranks)";
}

}  // namespace muster
