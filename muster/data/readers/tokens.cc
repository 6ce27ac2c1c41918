// Windows of a mapped file of tokens. A window reads one token more than its length: the targets
// are the tokens, shifted by one.
#include "muster/data/readers/tokens.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "muster/base/indices_of.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

constexpr int64_t kTokensLookedAt = 4096;
constexpr int64_t kFewestForWidth = 64;   // fewer tokens do not show that every second one is 0
constexpr int64_t kFewestDifferent = 16;  // nor do a few that come again and again

constexpr FileRefusal refuse_tokens{"tokens"};

// What people take for a file of tokens, and whose head would be read as some.
struct HeadOfOther {
  std::string_view begins_with;
  const char* what;
  const char* next;
};
constexpr HeadOfOther kOthers[] = {
    {"\x93NUMPY", "a .npy file", "write the tokens alone: array.tofile(path)"},
    {std::string_view("\x88\xd8\x34\x01", 4),  // 20240520
     "a file with llm.c's head of 1024 bytes",
     "write the tokens alone: tail -c +1025"},
    {"PK\x03\x04", "an archive, as torch.save and numpy.savez write", "write the tokens alone"},
    {"\x1f\x8b", "a gzip file", "unpack it"},
};

// Numbers below 2^16 in twice the width are, in half the width, every second time 0.
bool is_of_wider_tokens(const Tensor& tokens) {
  const int64_t pairs = tokens.numel() / 2;
  if (2 * pairs < kFewestForWidth)
    return false;
  const Tensor low_and_high = tokens.narrow(0, 0, 2 * pairs).view({pairs, 2});
  std::set<int64_t> different;
  for (const int64_t i : indices_below(pairs)) {
    if (low_and_high[i][1].item<int64_t>() != 0)
      return false;
    different.insert(low_and_high[i][0].item<int64_t>());
  }
  return std::ssize(different) >= kFewestDifferent;
}

void check_kind(std::string_view bytes, const std::string& path) {
  for (const HeadOfOther& other : kOthers)
    if (bytes.starts_with(other.begins_with))
      refuse_tokens(path, "tokens and nothing else", other.what, other.next);
}

}  // namespace

TokenFile::TokenFile(const std::string& path,
                     TokenType type,
                     int64_t context,
                     const TokenFileOptions& options)
    : file_(std::make_shared<MappedFile>(path)), type_(type), context_(context), options_(options) {
  if (context < 1)
    refuse_tokens(
        path, "a context of at least 1 token", cat(context), "pass the model's context length");
  check_kind(file_->bytes(), path);
  tokens_ = count_tokens(file_->bytes(), type, path);
  if (tokens_ <= context)
    refuse_tokens(path,
                  cat("more than ", context, " tokens, one window and its targets"),
                  cat(tokens_),
                  "pass a smaller context");
  check_width();
  // The last token can only be a target, so it begins no window.
  const int64_t consecutive = (tokens_ - 1) / context;
  windows_ = options.random && options.windows > 0 ? options.windows : consecutive;
}

void TokenFile::check_width() const {
  const int64_t count = std::min(tokens_, kTokensLookedAt);
  auto first = at::empty({count}, kLong);
  read_tokens(file_->bytes(), type_, file_->path(), 0, count, first.mutable_data_ptr<int64_t>());
  if (is_of_wider_tokens(first))
    refuse_tokens(
        file_->path(),
        cat("tokens of ", type_ == TokenType::uint16 ? 2 : 4, " bytes"),
        cat("0 for every second of the first ", count),
        "they are wider numbers: pass their type, or write them with astype(numpy.uint16)");
}

// The result is a copy, so it outlives the file.
Tensor TokenFile::tokens(int64_t begin, int64_t count) const {
  check_token_part(tokens_, begin, count, file_->path());
  auto found = at::empty({count}, kLong);
  const int64_t largest = read_tokens(
      file_->bytes(), type_, file_->path(), begin, count, found.mutable_data_ptr<int64_t>());
  if (options_.vocabulary > 0 && largest >= options_.vocabulary)
    refuse_tokens(file_->path(),
                  cat("tokens below ", options_.vocabulary),
                  cat(largest, " between token ", begin, " and ", begin + count),
                  "see whether it is of this type and this vocabulary");
  return found;
}

// The sample's generator chooses the place of a random window, and the index does not.
TokenWindow TokenFile::get(int64_t index, Generator& rng) const {
  if (index < 0 || index >= windows_)
    refuse_tokens(file_->path(),
                  cat("a window from 0 to ", windows_ - 1),
                  cat(index),
                  "ask for one that exists");
  const int64_t begin = options_.random ? rng.integer(tokens_ - context_) : index * context_;
  const auto window = tokens(begin, context_ + 1);
  return {.tokens = window.narrow(0, 0, context_), .targets = window.narrow(0, 1, context_)};
}

}  // namespace muster
