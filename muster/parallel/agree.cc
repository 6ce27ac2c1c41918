// Ranks compare what must be the same on all of them: each sends its terms as lines, and all see
// the lines of all. So every rank finds the same first difference and throws the same error, and
// none is left waiting in the next collective.
#include "muster/parallel/agree.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/ddp/replica_check.h"

namespace muster {

namespace {

// The message of a rank: a line for what is wrong, which may be empty, and then a line for each
// term.
std::string agree_message(const std::string& wrong, const Terms& terms) {
  std::string lines = wrong;
  for (const Term& term : terms)
    lines += cat("\n", term.name, "\t", term.value, "\t", term.otherwise);
  return lines;
}

// A line of the message back as a term; a rank that has fewer terms has "nothing".
Term agree_term_of_line(const std::string& line) {
  const auto parts = split(line, '\t');
  if (parts.size() < 3)
    return {line, "nothing"};
  return {parts[0], parts[1], parts[2]};
}

// A rank that sent fewer lines gives an empty one, which reads as a term without a name.
std::string agree_line(const Strings& lines, size_t i) {
  return i < lines.size() ? lines[i] : std::string();
}

}  // namespace

// All ranks of the group call it together, each with its own findings. It returns only if no rank
// found anything wrong and all terms are equal.
void require_agreement(ProcessGroup& group,
                       const std::string& owner,
                       const std::string& wrong,
                       const Terms& terms) {
  const auto by_rank = mapped(group.all_gather_bytes(agree_message(wrong, terms), owner),
                              [](const std::string& bytes) { return split(bytes, '\n'); });
  const size_t most = std::ranges::max(by_rank, {}, std::ranges::size).size();
  // What is wrong on one rank comes first: it may be the reason for the differences.
  for (const auto& lines : by_rank) {
    if (!lines[0].empty())
      throw invalid_argument(lines[0]);
  }
  for (size_t i = 1; i < most; ++i) {
    const Term first = agree_term_of_line(agree_line(by_rank[0], i));
    for (int rank = 1; rank < std::ssize(by_rank); ++rank) {
      const Term other = agree_term_of_line(agree_line(by_rank[rank], i));
      if (other.name == first.name && other.value == first.value)
        continue;
      const Term& named = first.name.empty() ? other : first;
      throw invalid_argument(owner,
                             ": expected the same on every rank, got ",
                             named.name,
                             " ",
                             first.value,
                             " on rank ",
                             group.job_rank(0),
                             " and ",
                             other.value,
                             " on rank ",
                             group.job_rank(rank),
                             " (rank ",
                             group.job_rank(),
                             "); give all ranks the same model, seed and options",
                             named.otherwise);
    }
  }
}

// The hash covers every bit of a tensor, so models that differ in one value are told apart too.
Terms terms_of(const std::string& name, const Tensors& tensors) {
  Terms terms{{cat("number of ", name, "s"), cat(tensors.size())}};
  for (const size_t i : indices_of(tensors)) {
    const Tensor& tensor = tensors[i];
    terms.push_back(
        {cat(name, " ", i), cat(tensor_text(tensor), " with bits ", hash_of_bits(tensor))});
  }
  return terms;
}

}  // namespace muster
