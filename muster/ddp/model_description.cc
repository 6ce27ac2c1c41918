// Ranks compare the text line by line: the first line that differs names the parameter.
#include "muster/ddp/model_description.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/tensor_text.h"
#include "muster/base/tensors.h"

namespace muster {

namespace {

// Buckets are filled by strides: a channels_last weight beside a contiguous one would be averaged
// in another order. Usual strides are not said.
std::string strides_of(const Tensor& tensor) {
  return tensor.is_contiguous() ? "" : cat(" strides [", join(tensor.strides(), ", "), "]");
}

// "parameter fc1.weight: Float [10, 64]".
std::string describe(const std::string& kind, const std::string& name, const Tensor& tensor) {
  return cat(kind,
             " ",
             name,
             ": ",
             tensor_text(tensor),
             strides_of(tensor),
             kind == "parameter" && !tensor.requires_grad() ? " (frozen)" : "");
}

std::string line_or_nothing(const Strings& lines, size_t at) {
  return at < lines.size() && !lines[at].empty() ? in_quotes(lines[at]) : "nothing";
}

}  // namespace

std::string describe_model(const ModelSource& model) {
  Strings lines;
  for (const auto& item : model.parameters())
    lines.push_back(describe("parameter", item.name, item.tensor));
  for (const auto& item : model.buffers())
    lines.push_back(describe("buffer", item.name, item.tensor));
  return join(lines, "\n");
}

void check_same_model(const Strings& descriptions, const ProcessGroup& group) {
  for (int rank = 1; rank < std::ssize(descriptions); ++rank) {
    if (descriptions[rank] == descriptions[0])
      continue;
    const auto first = split(descriptions[0], '\n');
    const auto other = split(descriptions[rank], '\n');
    const size_t at = std::ranges::mismatch(first, other).in1 - first.begin();
    throw invalid_argument("DistributedDataParallel: expected the same model on every rank, got ",
                           line_or_nothing(first, at),
                           " on rank ",
                           group.job_rank(0),
                           " and ",
                           line_or_nothing(other, at),
                           " on rank ",
                           group.job_rank(rank),
                           " (entry ",
                           at,
                           "); build the model alike on all ranks");
  }
}

}  // namespace muster
